package progress

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// counted is an observer of pulls.
type counted struct {
	began, ended int
	bytes        int64
	took         time.Duration
	err          error
}

func (c *counted) PullBegan() { c.began++ }

func (c *counted) PullEnded(bytes int64, took time.Duration, err error) {
	c.ended, c.bytes, c.took, c.err = c.ended+1, c.bytes+bytes, c.took+took, err
}

// TestPullsAreCounted: callers that share a pull count once, with the bytes of layers alone.
func TestPullsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &counted{}
		pulls := Pulls{Observer: seen}
		named, err := reference.ParseNormalizedNamed("example.org/app:1")
		if err != nil {
			t.Fatal(err)
		}
		pull := func(_ context.Context, m *Meter) (string, error) {
			m.Stage(Resolving, 0)
			m.Touch()
			m.Stage(Fetching, 100)
			m.Add(40)
			time.Sleep(time.Second)
			m.Add(60)
			m.Unpack(500)
			m.Stage(Unpacking, 500)
			return "id", nil
		}
		results := make(chan error)
		for range 2 {
			go func() {
				_, err := pulls.Do(t.Context(), named, Terms{}, nil, pull)
				results <- err
			}()
		}
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if *seen != (counted{1, 1, 100, time.Second, nil}) {
			t.Errorf("%+v, want one pull of 100 bytes in a second", *seen)
		}
		_, err = pulls.Do(t.Context(), named, Terms{}, nil, func(context.Context, *Meter) (string, error) { return "", errs.Unavailable })
		if err == nil || seen.began != 2 || seen.ended != 2 || seen.err == nil {
			t.Errorf("%v; %+v, want a failure that counts", err, *seen)
		}
		_, err = pulls.Do(t.Context(), named, Terms{}, nil, func(context.Context, *Meter) (string, error) { panic("oh no") })
		if err == nil || seen.began != 3 || seen.ended != 3 {
			t.Errorf("%v; %+v, want an end of the pull that panics", err, *seen)
		}
	})
}

// TestSearchCountsOnce: a search is one pull, with its last result, whatever its parts have come to.
func TestSearchCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &counted{}
		pulls := Pulls{Observer: seen}
		var candidates []reference.Named
		for _, text := range []string{"a.test/app:1", "b.test/app:1"} {
			named, err := reference.ParseNormalizedNamed(text)
			if err != nil {
				t.Fatal(err)
			}
			candidates = append(candidates, named)
		}
		var mu sync.Mutex
		var reports []image.Progress
		report := func(p image.Progress) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, p)
		}
		search := func(last error) error {
			_, err := pulls.Search(t.Context(), candidates, Terms{}, report, func(ctx context.Context, s *Search) (string, error) {
				if _, err := s.Do(ctx, candidates[0], Terms{}, func(context.Context, *Meter) (string, error) {
					time.Sleep(time.Second)
					return "", errs.NotFound
				}); err == nil {
					t.Error("the error of a part is lost")
				}
				return s.Do(ctx, candidates[1], Terms{}, func(_ context.Context, m *Meter) (string, error) {
					m.Stage(Fetching, 100)
					time.Sleep(time.Second)
					m.Add(100)
					return "id", last
				})
			})
			return err
		}
		results := make(chan error)
		for range 2 {
			go func() { results <- search(nil) }()
		}
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if *seen != (counted{1, 1, 100, 2 * time.Second, nil}) {
			t.Errorf("%+v, want one pull of 100 bytes in two seconds", *seen)
		}
		if len(reports) == 0 || reports[0].Stage != Fetching {
			t.Errorf("progress %+v", reports)
		}
		if err := search(errs.Unavailable); err == nil || seen.began != 2 || seen.ended != 2 || seen.err == nil {
			t.Errorf("%v; %+v, want a failure that counts once", err, *seen)
		}
	})
}

// TestWhatAPullWaitsFor: people see which of the two waits for other downloads it is, or that it is both.
func TestWhatAPullWaitsFor(t *testing.T) {
	const limits = "other downloads of the node (image.max_total_downloads, image.download_rate_mib)"
	for want, now := range map[string]image.Progress{
		"the registry":                                    {Stage: Resolving},
		"the registry, 1 of 5 bytes":                      {Stage: Fetching, Done: 1, Total: 5},
		limits + ", 1 of 5 bytes":                         {Stage: Waiting, Done: 1, Total: 5, Limited: true},
		"the disk, 1 of 5 bytes":                          {Stage: Unpacking, Done: 1, Total: 5},
		"the record of the image":                         {Stage: Done, Total: 5},
		"1 layer that another pull fetches, 1 of 5 bytes": {Stage: Waiting, Done: 1, Total: 5, Behind: 1},
		"2 layers that other pulls fetch, and " + limits + ", 1 of 5 bytes": {Stage: Waiting, Done: 1, Total: 5, Behind: 2, Limited: true},
	} {
		if got := WaitsFor("the registry", now); got != want {
			t.Errorf("%+v: %q, want %q", now, got, want)
		}
	}
}
