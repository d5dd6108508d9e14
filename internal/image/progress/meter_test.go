package progress

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/image"
)

// TestWaitForOtherDownloadsIsProgress: a pull whose layers wait for other downloads of the node does not fail, and says
// that it waits. One that fetches again and gets nothing fails.
func TestWaitForOtherDownloadsIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stages []string
		m := NewMeter(func(p image.Progress) {
			if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
				stages = append(stages, p.Stage)
			}
		})
		ctx, release := m.Guard(t.Context(), time.Minute)
		defer release()
		m.Stage(Fetching, 100)
		endFirst, endSecond := m.Transfer(), m.Transfer()
		first := m.Wait()
		time.Sleep(30 * time.Second)
		m.Add(10) // of the second layer
		if want := []string{Fetching}; !slices.Equal(stages, want) {
			t.Errorf("stages %v while a layer is fetched", stages)
		}
		second := m.Wait()
		time.Sleep(time.Hour)
		if err := context.Cause(ctx); err != nil {
			t.Fatalf("a pull that waits for other downloads: %v", err)
		}
		second()
		endSecond()
		first()
		if want := []string{Fetching, Waiting, Fetching}; !slices.Equal(stages, want) {
			t.Errorf("stages %v, want %v", stages, want)
		}
		time.Sleep(50 * time.Second)
		if err := context.Cause(ctx); err != nil {
			t.Errorf("the wait counts as time without progress: %v", err)
		}
		time.Sleep(20 * time.Second)
		if err := context.Cause(ctx); !errors.Is(err, ErrNoProgress) {
			t.Errorf("a layer that gets nothing for a minute: %v", err)
		}
		endFirst()
	})
}

// TestLayersOfOtherPullsAreWaitedFor: a pull whose layers come with another one says so, and for how many layers, also when
// its own download ends after that wait has begun.
func TestLayersOfOtherPullsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []image.Progress
		m := NewMeter(func(p image.Progress) { all = append(all, p) })
		last := func(want image.Progress) {
			t.Helper()
			synctest.Wait()
			if got := all[len(all)-1]; got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		ctx, release := m.Guard(t.Context(), time.Minute)
		defer release()
		m.Stage(Fetching, 100)
		own := m.Transfer()
		first, second := m.Behind(), m.Behind()
		time.Sleep(2 * time.Second)
		last(image.Progress{Stage: Fetching, Total: 100})
		own()
		time.Sleep(2 * time.Second)
		last(image.Progress{Stage: Waiting, Total: 100, Behind: 2})
		time.Sleep(time.Hour)
		if err := context.Cause(ctx); err != nil {
			t.Errorf("a pull that waits for another one: %v", err)
		}
		first()
		last(image.Progress{Stage: Waiting, Total: 100, Behind: 1})
		own = m.Transfer()
		limited := m.Wait()
		time.Sleep(2 * time.Second)
		last(image.Progress{Stage: Waiting, Total: 100, Behind: 1, Limited: true})
		limited()
		last(image.Progress{Stage: Fetching, Total: 100})
		own()
		second()
		last(image.Progress{Stage: Fetching, Total: 100})
	})
}

// TestShortWaitsAreNotReported: at a limited rate there are many.
func TestShortWaitsAreNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMeter(func(p image.Progress) {
			if p.Stage == Waiting {
				t.Error("a short wait is reported")
			}
		})
		m.Stage(Fetching, 100)
		defer m.Transfer()()
		for range 100 {
			end := m.Wait()
			time.Sleep(900 * time.Millisecond)
			end()
			m.Add(1)
		}
	})
}
