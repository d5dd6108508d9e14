package jobcalls

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// waits is work that waits for its end.
func waits(ctx context.Context, at image.Stage) error {
	at("wait", "the test", time.Now())
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestJobsOfSeveralTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := NewImages(slog.New(slog.DiscardHandler)), NewImages(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 2)
		go func() { results <- first.Run(ctx, image.Job{Kind: "a", Key: "one", ID: "1"}, waits) }()
		synctest.Wait()
		time.Sleep(time.Second)
		go func() {
			results <- second.Run(t.Context(), image.Job{Kind: "b", Key: "two", ID: "2", Waited: true}, waits)
		}()
		synctest.Wait()
		jobs := List(second, first)()
		if len(jobs) != 2 || jobs[0].Key != "one" || jobs[0].Waiters != 0 || jobs[1].Key != "two" || jobs[1].Waiters != 1 || jobs[1].Stage != "wait" {
			t.Errorf("%+v", jobs)
		}
		control := Control(first, second)
		var ended []string
		watched := make(chan error, 1)
		go func() {
			watched <- control.Watch(t.Context(), func(u berthapi.JobUpdate) error {
				if u.Ended {
					ended = append(ended, u.Key+" "+u.Result)
				}
				return nil
			})
		}()
		synctest.Wait()
		if end, err := control.Cancel(t.Context(), "2"); err != nil || end.Kind != "b" || end.Result != "cancelled" {
			t.Errorf("%+v, %v", end, err)
		}
		if err := <-results; !errors.Is(err, errs.Unavailable) {
			t.Errorf("a cancelled job: %v", err)
		}
		if _, err := control.Cancel(t.Context(), "3"); !errors.Is(err, errs.NotFound) {
			t.Errorf("an unknown job: %v", err)
		}
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("a job whose request ended: %v", err)
		}
		synctest.Wait()
		first.Close()
		if err := <-watched; !errors.Is(err, errs.Unavailable) || !slices.Equal(ended, []string{"two cancelled", "one cancelled"}) {
			t.Errorf("watched until %v: %q", err, ended)
		}
	})
}
