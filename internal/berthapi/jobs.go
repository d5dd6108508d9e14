package berthapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/errs"
)

// JobUpdate is a job at one moment: when a watch began, when the job reached a stage, or when it ended.
type JobUpdate struct {
	Job
	// Ended says that the job has ended with Result: ok, failed or cancelled. Error says why it has failed.
	Ended  bool   `json:"ended,omitempty"`
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// JobControl follows and cancels jobs, for the server.
type JobControl struct {
	// Watch calls send with the jobs that run, and then with each change, until ctx or the daemon ends, or send fails.
	Watch func(ctx context.Context, send func(JobUpdate) error) error
	// Cancel cancels a job and returns its end, with the job as it was before.
	Cancel func(ctx context.Context, id string) (JobUpdate, error)
}

// WatchJobs implements berthpb.BerthServer.
func (h *handlers) WatchJobs(_ *berthpb.WatchJobsRequest, stream grpc.ServerStreamingServer[berthpb.JobUpdate]) error {
	if h.control.Watch == nil {
		return fmt.Errorf("the jobs of this daemon cannot be followed: %w", errs.Unsupported)
	}
	err := h.control.Watch(stream.Context(), func(u JobUpdate) error {
		return stream.Send(&berthpb.JobUpdate{Job: jobToProto(&u.Job), Ended: u.Ended, Result: u.Result, Error: validText(u.Error)})
	})
	if stream.Context().Err() != nil {
		return nil //nolint:nilerr // the client has left
	}
	return err
}

// AnswerTime is how long before the deadline of a client CancelJob ends its wait, so that its answer arrives in time.
const AnswerTime = time.Second

// beforeDeadline returns a context that ends AnswerTime before ctx does, or half of the time if that is less.
func beforeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(AnswerTime, time.Until(deadline)/2)))
}

// CancelJob implements berthpb.BerthServer.
func (h *handlers) CancelJob(ctx context.Context, req *berthpb.CancelJobRequest) (*berthpb.CancelJobResponse, error) {
	if h.control.Cancel == nil {
		return nil, fmt.Errorf("the jobs of this daemon cannot be cancelled: %w", errs.Unsupported)
	}
	ctx, cancel := beforeDeadline(ctx)
	defer cancel()
	end, err := h.control.Cancel(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return &berthpb.CancelJobResponse{Job: jobToProto(&end.Job), Result: end.Result, Error: validText(end.Error)}, nil
}

// WatchJobs calls receive with the jobs that run, and then with each change of a job, until ctx or the daemon ends, or
// receive fails.
func (c *Client) WatchJobs(ctx context.Context, receive func(JobUpdate) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.WatchJobs(ctx, &berthpb.WatchJobsRequest{})
	if err != nil {
		return err
	}
	for {
		u, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := receive(JobUpdate{Job: jobFromProto(u.GetJob()), Ended: u.GetEnded(), Result: u.GetResult(), Error: u.GetError()}); err != nil {
			return err
		}
	}
}

// CancelJob cancels the job of a sandbox or container, by its id, a prefix of it, or the job's key, and waits for its
// end. It returns the job as it was, with its result. Errors: NotFound, Invalid for a prefix of several, State for a
// stop or a removal.
func (c *Client) CancelJob(ctx context.Context, id string) (JobUpdate, error) {
	resp, err := c.api.CancelJob(ctx, &berthpb.CancelJobRequest{Id: id})
	if err != nil {
		return JobUpdate{}, err
	}
	return JobUpdate{Job: jobFromProto(resp.GetJob()), Ended: true, Result: resp.GetResult(), Error: resp.GetError()}, nil
}
