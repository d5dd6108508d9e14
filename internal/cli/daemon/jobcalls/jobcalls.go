// Package jobcalls shows the jobs of pods and of images in the shape of berth's own service.
package jobcalls

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
)

// Table is what runs jobs: a pod.Service, or Images.
type Table interface {
	Jobs() []job.Info
	WatchJobs() (*job.Watch, error)
	CancelJob(ctx context.Context, id string) (before job.Info, end job.Update, err error)
}

// List returns a function that lists the running jobs of all tables, the oldest first.
func List(tables ...Table) func() []berthapi.Job {
	return func() []berthapi.Job {
		var all []berthapi.Job
		for _, table := range tables {
			for _, info := range table.Jobs() {
				all = append(all, shownJob(info))
			}
		}
		slices.SortStableFunc(all, func(a, b berthapi.Job) int { return cmp.Compare(b.Age, a.Age) })
		return all
	}
}

func shownJob(info job.Info) berthapi.Job {
	return berthapi.Job{
		Key: info.Key, Kind: string(info.Kind), ID: info.ID,
		Stage: info.Stage, WaitsFor: info.WaitsFor, StageAge: info.StageAge, Age: info.Age,
		Waiters: info.Waiters, Cancelled: info.Cancelled, Slow: info.Slow, FetchedBytes: info.Live.Fetched, LayerBytes: info.Live.Size,
	}
}

// Control returns what follows and cancels the jobs of all tables. Where two have jobs of one id, the job of the
// first table is cancelled.
func Control(tables ...Table) berthapi.JobControl {
	return berthapi.JobControl{
		Watch: func(ctx context.Context, send func(berthapi.JobUpdate) error) error {
			var sending sync.Mutex
			all, ctx := errgroup.WithContext(ctx)
			for _, table := range tables {
				watch, err := table.WatchJobs()
				if err != nil {
					return err
				}
				defer watch.Cancel()
				all.Go(func() error { return follow(ctx, watch, &sending, send) })
			}
			return all.Wait()
		},
		Cancel: func(ctx context.Context, id string) (u berthapi.JobUpdate, err error) {
			for _, table := range tables {
				var before job.Info
				var end job.Update
				if before, end, err = table.CancelJob(ctx, id); err == nil {
					return shownUpdate(&end, before), nil
				}
				if !errors.Is(err, errs.NotFound) {
					break
				}
			}
			return berthapi.JobUpdate{}, err
		},
	}
}

// follow sends the updates of a watch until one of both fails. One is sent at a time.
func follow(ctx context.Context, watch *job.Watch, sending *sync.Mutex, send func(berthapi.JobUpdate) error) error {
	for {
		updates, err := watch.Next(ctx)
		if err != nil {
			return err
		}
		sending.Lock()
		for i := range updates {
			if err = send(shownUpdate(&updates[i], updates[i].Info)); err != nil {
				break
			}
		}
		sending.Unlock()
		if err != nil {
			return err
		}
	}
}

// shownUpdate is an update with a job of its moment or of an earlier one.
func shownUpdate(u *job.Update, at job.Info) berthapi.JobUpdate {
	shown := berthapi.JobUpdate{Job: shownJob(at), Ended: u.Ended, Result: u.Result}
	if u.Err != nil {
		shown.Error = errs.Message(u.Err)
	}
	return shown
}
