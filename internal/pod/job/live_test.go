package job

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestJobShowsHowFarItIsNow: not how far it was when it last reported its stage. A job that reports its stage again stays
// in it.
func TestJobShowsHowFarItIsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(nil, Limits{})
		var live atomic.Pointer[Live]
		live.Store(&Live{Waiters: 2})
		goOn, end := make(chan struct{}), make(chan struct{})
		j, err := table.Enter(t.Context(), &Request{Key: "k", Kind: "pull image", Live: func() Live { return *live.Load() }, Run: func(_ context.Context, j *Job) (string, error) {
			j.Stage("fetching", "the registry")
			<-goOn
			j.Stage("fetching", "another registry")
			<-end
			return "", nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if info := j.Info(); info.WaitsFor != "the registry" || info.Waiters != 2 {
			t.Errorf("before it knows how much there is: %+v", info)
		}
		now := Live{Fetched: 40, Size: 100, Done: 40, Total: 100}
		live.Store(&now)
		if info := j.Info(); info.WaitsFor != "the registry, 40 of 100 bytes" || info.Live != now {
			t.Errorf("%+v", info)
		}
		time.Sleep(time.Minute)
		close(goOn)
		synctest.Wait()
		time.Sleep(time.Second)
		if info := j.Info(); info.WaitsFor != "another registry, 40 of 100 bytes" || info.StageAge != 61*time.Second {
			t.Errorf("after it has reported its stage again: %+v", info)
		}
		close(end)
		<-j.Done()
	})
}
