package berthapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
