package berthapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
)

func controlled(control berthapi.JobControl) *berthapi.Server {
	return &berthapi.Server{Images: &fakeImages{}, Jobs: func() []berthapi.Job { return nil }, Control: control}
}

// TestWatchJobs: updates come as they are sent, until the daemon ends them or the client leaves.
func TestWatchJobs(t *testing.T) {
	want := []berthapi.JobUpdate{
		{Job: berthapi.Job{Key: "k", Kind: "run sandbox", ID: "ab", Stage: "network", WaitsFor: "CNI", StageAge: time.Second, Age: time.Minute}},
		{Job: berthapi.Job{Key: "k", Kind: "run sandbox", ID: "ab", Stage: "ended"}, Ended: true, Result: "failed", Error: "no room"},
	}
	left := make(chan struct{})
	api := controlled(berthapi.JobControl{Watch: func(ctx context.Context, send func(berthapi.JobUpdate) error) error {
		for _, u := range want {
			if err := send(u); err != nil {
				return err
			}
		}
		<-ctx.Done()
		close(left)
		return ctx.Err()
	}})
	conn := connect(t, api.Register)
	enough := errors.New("enough")
	var got []berthapi.JobUpdate
	err := conn.Berth.WatchJobs(t.Context(), func(u berthapi.JobUpdate) error {
		if got = append(got, u); len(got) == len(want) {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	<-left

	slow := controlled(berthapi.JobControl{Watch: func(context.Context, func(berthapi.JobUpdate) error) error {
		return fmt.Errorf("too slow: %w", errs.Exhausted)
	}})
	if err := connect(t, slow.Register).Berth.WatchJobs(t.Context(), nil); !errors.Is(err, errs.Exhausted) {
		t.Errorf("got %v", err)
	}
}

// TestCancelJobAnswersBeforeTheDeadline: the client gets the reason for which the job has not ended.
func TestCancelJobAnswersBeforeTheDeadline(t *testing.T) {
	api := controlled(berthapi.JobControl{Cancel: func(ctx context.Context, _ string) (berthapi.JobUpdate, error) {
		<-ctx.Done()
		return berthapi.JobUpdate{}, fmt.Errorf("it waits for the disk: %w", errs.Deadline)
	}})
	ctx, cancel := context.WithTimeout(t.Context(), berthapi.AnswerTime+100*time.Millisecond)
	defer cancel()
	if _, err := connect(t, api.Register).Berth.CancelJob(ctx, "ab"); !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), "it waits for the disk") {
		t.Errorf("error %v", err)
	}
}

func TestCancelJob(t *testing.T) {
	api := controlled(berthapi.JobControl{Cancel: func(_ context.Context, id string) (berthapi.JobUpdate, error) {
		if id != "ab" {
			return berthapi.JobUpdate{}, fmt.Errorf("a stop: %w", errs.State)
		}
		return berthapi.JobUpdate{Job: berthapi.Job{ID: "abc", Stage: "network"}, Ended: true, Result: "cancelled", Error: "why"}, nil
	}})
	conn := connect(t, api.Register)
	end, err := conn.Berth.CancelJob(t.Context(), "ab")
	if err != nil || end.ID != "abc" || end.Result != "cancelled" || end.Error != "why" || !end.Ended {
		t.Errorf("got %+v, %v", end, err)
	}
	if _, err := conn.Berth.CancelJob(t.Context(), "x"); !errors.Is(err, errs.State) {
		t.Errorf("a job that cannot be cancelled: %v", err)
	}
	without := connect(t, controlled(berthapi.JobControl{}).Register)
	if _, err := without.Berth.CancelJob(t.Context(), "ab"); !errors.Is(err, errs.Unsupported) {
		t.Errorf("a daemon without control: %v", err)
	}
	if err := without.Berth.WatchJobs(t.Context(), nil); !errors.Is(err, errs.Unsupported) {
		t.Errorf("a daemon without control: %v", err)
	}
}
