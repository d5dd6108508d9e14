// Package jobcalls shows the jobs of pods in the shape of berth's own service.
package jobcalls

import (
	"context"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/job"
)

// List returns a function that lists the running jobs, the oldest first.
func List(pods *pod.Service) func() []berthapi.Job {
	return func() []berthapi.Job {
		var all []berthapi.Job
		for _, info := range pods.Jobs() {
			all = append(all, shownJob(info))
		}
		return all
	}
}

func shownJob(info job.Info) berthapi.Job {
	return berthapi.Job{
		Key: info.Key, Kind: string(info.Kind), ID: info.ID,
		Stage: info.Stage, WaitsFor: info.WaitsFor, StageAge: info.StageAge, Age: info.Age,
		Waiters: info.Waiters, Cancelled: info.Cancelled, Slow: info.Slow,
	}
}

// Control returns what follows and cancels jobs.
func Control(pods *pod.Service) berthapi.JobControl {
	return berthapi.JobControl{
		Watch: func(ctx context.Context, send func(berthapi.JobUpdate) error) error {
			watch, err := pods.WatchJobs()
			if err != nil {
				return err
			}
			defer watch.Cancel()
			for {
				updates, err := watch.Next(ctx)
				if err != nil {
					return err
				}
				for i := range updates {
					if err := send(shownUpdate(&updates[i], updates[i].Info)); err != nil {
						return err
					}
				}
			}
		},
		Cancel: func(ctx context.Context, id string) (berthapi.JobUpdate, error) {
			before, end, err := pods.CancelJob(ctx, id)
			if err != nil {
				return berthapi.JobUpdate{}, err
			}
			return shownUpdate(&end, before), nil
		},
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
