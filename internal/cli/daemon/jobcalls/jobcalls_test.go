package jobcalls

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/progress"
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
		synctest.Wait() // the watch of each table is followed by itself
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

// TestPullsAreJobs: pulls of one image with different credentials run beside each other, callers that share a pull are
// one job, which says what it waits for, and a pull that is cancelled ends with the cause, alone.
func TestPullsAreJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jobs := NewImages(slog.New(slog.DiscardHandler))
		pulls := progress.Pulls{Jobs: jobs}
		named, err := reference.ParseNormalizedNamed("registry.example/app:1")
		if err != nil {
			t.Fatal(err)
		}
		const secret = "hunter2"
		finish := make(chan struct{})
		results := map[string]chan error{"": make(chan error, 2), secret: make(chan error, 1)}
		for _, password := range []string{"", "", secret} {
			go func() {
				_, err := pulls.Do(t.Context(), named, progress.Terms{Auth: image.Auth{Username: "user", Password: password}}, nil, func(ctx context.Context, m *progress.Meter) (string, error) {
					m.Stage(progress.Fetching, 100)
					m.Add(40)
					select {
					case <-finish:
						return "id", nil
					case <-ctx.Done():
						return "", context.Cause(ctx)
					}
				})
				results[password] <- err
			}()
			synctest.Wait()
			time.Sleep(time.Second) // jobs are listed by age
		}
		all := jobs.Jobs()
		if len(all) != 2 || all[0].ID == all[1].ID {
			t.Fatalf("%+v, want two jobs", all)
		}
		if all[0].Waiters != 2 || all[1].Waiters != 1 {
			t.Errorf("%d and %d requests wait, want 2 and 1", all[0].Waiters, all[1].Waiters)
		}
		for _, j := range all {
			if j.Kind != "pull image" || j.Key != "registry.example/app:1" || j.Stage != "fetching" || j.WaitsFor != "the registry registry.example, 40 of 100 bytes" {
				t.Errorf("%+v", j)
			}
		}
		control := Control(jobs)
		if _, err := control.Cancel(t.Context(), "registry.example/app:1"); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), all[0].ID) {
			t.Errorf("a cancellation of one of two pulls, by the name of the image: %v", err)
		}
		if end, err := control.Cancel(t.Context(), all[0].ID); err != nil || end.Result != "cancelled" {
			t.Errorf("%+v, %v", end, err)
		}
		for range 2 {
			if err := <-results[""]; !errors.Is(err, errs.Unavailable) {
				t.Errorf("a pull that was cancelled: %v", err)
			}
		}
		synctest.Wait()
		select {
		case err := <-results[secret]:
			t.Errorf("the other pull has ended: %v", err)
		default:
		}
		close(finish)
		if err := <-results[secret]; err != nil {
			t.Errorf("the other pull: %v", err)
		}
		synctest.Wait()
		if all := jobs.Jobs(); len(all) != 0 {
			t.Errorf("jobs of pulls that have ended: %+v", all)
		}
	})
}
