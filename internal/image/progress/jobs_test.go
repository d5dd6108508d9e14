package progress

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/image"
)

// listed keeps the last stage of a job.
type listed struct {
	name, waitsFor string
	until          time.Time
}

func (l *listed) Run(ctx context.Context, _ image.Job, work func(context.Context, image.Stage) error) error {
	return work(ctx, func(name, waitsFor string, until time.Time) { *l = listed{name, waitsFor, until} })
}

// TestJobOfAPull: it names the endpoints that are asked. Its stage is slow soon after the last byte.
func TestJobOfAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var job listed
		pulls := Pulls{Jobs: &job}
		named, err := reference.ParseNormalizedNamed("example.org/app:1")
		if err != nil {
			t.Fatal(err)
		}
		is := func(when, waitsFor string, last time.Time) {
			t.Helper()
			synctest.Wait()
			if job.waitsFor != waitsFor || !job.until.Equal(last) {
				t.Errorf("%s: %+v, want %q and slow after %s", when, job, waitsFor, last)
			}
		}
		_, err = pulls.Do(t.Context(), named, Terms{}, nil, func(_ context.Context, m *Meter) (string, error) {
			m.Stage(Resolving, 0)
			is("at first", "the registry example.org", time.Now())
			mirror := m.Ask("the mirror m.test")
			is("a mirror", "the mirror m.test", time.Now())
			silent := time.Now()
			time.Sleep(time.Minute)
			is("a silent mirror", "the mirror m.test", silent)
			m.Touch()
			is("a byte", "the mirror m.test", time.Now())
			home := m.Ask("the registry example.org")
			is("two", "the mirror m.test and the registry example.org", time.Now())
			mirror()
			is("the other one", "the registry example.org", time.Now())
			home()
			m.Stage(Fetching, 100)
			is("between requests", "the registry example.org", time.Now())
			for range 3 {
				time.Sleep(20 * time.Second)
				m.Add(1)
				is("more bytes", "the registry example.org", time.Now())
			}
			defer m.Behind()()
			time.Sleep(time.Minute)
			synctest.Wait()
			if job.name != Waiting || !job.until.After(time.Now().Add(time.Minute)) {
				t.Errorf("a pull that waits for another one: %+v", job)
			}
			return "id", nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
