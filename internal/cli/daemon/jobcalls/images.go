package jobcalls

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/job"
)

// Images is the table of the jobs of the image store: pulls, checks, and what is fetched again in the background.
type Images struct{ table *job.Table }

var (
	_ image.Jobs = (*Images)(nil)
	_ Table      = (*Images)(nil)
)

// NewImages returns a table without jobs.
func NewImages(log *slog.Logger) *Images {
	slow := func(info job.Info) {
		log.Warn("a job stays in one stage", "job", info.Kind, "key", info.Key, "id", info.ID, "stage", info.Stage,
			"waits_for", info.WaitsFor, "seconds", int(info.StageAge.Seconds()))
	}
	return &Images{job.NewTable(
		func(job.Kind) job.Limits { return job.Limits{} },
		func(*job.Job, *job.Request) job.Conflict { return job.After },
		func(job.Info, error) {}, // Run returns it
		func(job.Info) {}, slow,
	)}
}

// Run implements image.Jobs.
func (i *Images) Run(ctx context.Context, of image.Job, work func(context.Context, image.Stage) error) error {
	req := &job.Request{
		Key: of.Key, ID: of.ID, Beside: of.Beside, Kind: job.Kind(of.Kind),
		Run: func(ctx context.Context, j *job.Job) (string, error) { return "", work(ctx, j.StageUntil) },
	}
	if of.Live != nil {
		req.Live = func() job.Live { return job.Live(of.Live()) }
	}
	j, err := i.table.Enter(ctx, req)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { j.Cancel(context.Cause(ctx)) })()
	if !of.Waited {
		<-j.Done()
	}
	// It ends soon after ctx, and what it uses must stay until then.
	_, err = j.Wait(context.WithoutCancel(ctx))
	return err
}

// Jobs implements Table.
func (i *Images) Jobs() []job.Info { return i.table.List() }

// WatchJobs implements Table.
func (i *Images) WatchJobs() (*job.Watch, error) { return i.table.Watch() }

// CancelJob implements Table. What is fetched for a job that is cancelled is removed, or kept for a later pull.
func (i *Images) CancelJob(ctx context.Context, id string) (before job.Info, end job.Update, err error) {
	return i.table.Cancel(ctx, id, fmt.Errorf("an operator has cancelled the job: %w", errs.Unavailable), func(job.Info) error { return nil })
}

// Close ends all watches. The store ends its jobs.
func (i *Images) Close() { i.table.CloseWatches() }
