package progress

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/reference"
)

func TestAwaitIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pulls Pulls
		if err := pulls.AwaitIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"example.org/a", "example.org/b"} {
			named, err := reference.ParseNormalizedNamed(name)
			if err != nil {
				t.Fatal(err)
			}
			wait := time.Second
			if name == "example.org/b" {
				wait = time.Hour
			}
			go func() {
				_, _ = pulls.Do(t.Context(), named, Terms{}, nil, func(context.Context, *Meter) (string, error) {
					time.Sleep(wait)
					return "", nil
				})
			}()
		}
		synctest.Wait()
		called := 0
		pulls.OnPull(func() { called++ })
		if called != 1 {
			t.Errorf("OnPull while pulls run: %d calls", called)
		}
		begin := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := pulls.AwaitIdle(short); err == nil {
			t.Error("idle while a pull runs")
		}
		if err := pulls.AwaitIdle(t.Context()); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("idle after %s: %v", time.Since(begin), err)
		}
		pulls.OnPull(func() { called++ })
		pulls.OnPull(func() { t.Error("called after stop") })()
		pulls.busy.begin()()
		pulls.busy.begin()()
		if called != 2 {
			t.Errorf("OnPull before a pull: %d calls", called-1)
		}
	})
}
