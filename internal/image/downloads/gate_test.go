package downloads

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func acquire(t *testing.T, g *Gate) (release func()) {
	t.Helper()
	release, err := g.Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestNoMoreDownloadsThanPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Places: 3})
		var running, most atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				defer acquire(t, g)()
				now := running.Add(1)
				for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				}
				time.Sleep(time.Second)
				running.Add(-1)
			})
		}
		began := time.Now()
		wg.Wait()
		if took := time.Since(began); most.Load() != 3 || took != 17*time.Second {
			t.Errorf("%d downloads at a time, %s for all; want 3, 17s", most.Load(), took)
		}
	})
}

func TestPodsGetPlacesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Places: 1})
		release := acquire(t, g)
		var order []string
		for _, name := range []string{"background 1", "background 2", "pod 1", "pod 2"} {
			ctx := t.Context()
			if name[0] == 'b' {
				ctx = InBackground(ctx)
			}
			go func() {
				release, err := g.Acquire(ctx, nil)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, name) // one at a time: they share one place
				release()
			}()
			synctest.Wait()
		}
		release()
		synctest.Wait()
		if want := []string{"pod 1", "pod 2", "background 1", "background 2"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

func TestCancelledWaiterTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Places: 1})
		release := acquire(t, g)
		reason := errors.New("the pull is cancelled")
		for _, ctx := range []context.Context{t.Context(), InBackground(t.Context())} {
			ctx, cancel := context.WithCancelCause(ctx)
			waits, ends := 0, 0
			failed := make(chan error, 1)
			go func() {
				_, err := g.Acquire(ctx, func() func() { waits++; return func() { ends++ } })
				failed <- err
			}()
			synctest.Wait()
			if waits != 1 || ends != 0 {
				t.Errorf("%d waits were reported, %d ends", waits, ends)
			}
			cancel(reason)
			if err := <-failed; !errors.Is(err, reason) || ends != 1 {
				t.Errorf("error %v, %d ends", err, ends)
			}
		}
		release()
		acquire(t, g)() // waits for ever if a place is lost
	})
}

// TestPlacesSurviveRaces: a place that is granted to a download whose context ends at that moment goes to the next one.
func TestPlacesSurviveRaces(t *testing.T) {
	g := New(Limits{Places: 2})
	var wg sync.WaitGroup
	for i := range 400 {
		ctx, cancel := context.WithCancel(t.Context())
		if i%2 == 0 {
			ctx = InBackground(ctx)
		}
		wg.Go(func() {
			if release, err := g.Acquire(ctx, nil); err == nil {
				release()
			}
		})
		wg.Go(cancel)
	}
	wg.Wait()
	if g.used != 0 || g.pods.Len() != 0 || g.background.Len() != 0 {
		t.Errorf("%d places are taken, %d and %d downloads wait", g.used, g.pods.Len(), g.background.Len())
	}
}

func TestConfigureWakesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Places: 2})
		releases := make(chan func(), 20)
		for range 10 {
			go func() { releases <- acquire(t, g) }()
		}
		running := func(want int) {
			t.Helper()
			if synctest.Wait(); len(releases) != want {
				t.Errorf("%d downloads have got a place, want %d", len(releases), want)
			}
		}
		running(2)
		g.Configure(Limits{Places: 5})
		running(5)
		g.Configure(Limits{Places: 1})
		for range 4 {
			(<-releases)()
		}
		running(1) // the fifth
		(<-releases)()
		running(1) // a sixth
		g.Configure(Limits{})
		running(5) // all that were left
	})
}

// read reads total bytes in pieces as they come from a connection.
func read(ctx context.Context, t *testing.T, g *Gate, total int, count *atomic.Int64) {
	const piece = 16 << 10
	for ; total > 0; total -= piece {
		if err := g.Read(ctx, piece, nil); err != nil {
			t.Error(err)
		}
		count.Add(piece)
	}
}

func TestAllDownloadsShareTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Rate: 2 << 20})
		var count atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for range 4 {
			wg.Go(func() { read(t.Context(), t, g, 5<<20, &count) })
		}
		wg.Wait()
		if took := time.Since(began); took < 9500*time.Millisecond || took > 10500*time.Millisecond {
			t.Errorf("20 MiB took %s at 2 MiB/s", took)
		}
		g.Configure(Limits{})
		began = time.Now()
		read(t.Context(), t, g, 1<<30, &count)
		if took := time.Since(began); took != 0 {
			t.Errorf("without a limit it took %s", took)
		}
	})
}

func TestBackgroundGetsWhatPodsLeaveOfTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Rate: 1 << 20})
		var pod, background atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() { read(InBackground(t.Context()), t, g, 20<<20, &background) })
		wg.Go(func() {
			time.Sleep(time.Second)
			before := background.Load()
			began := time.Now()
			read(t.Context(), t, g, 5<<20, &pod)
			if took, got := time.Since(began), background.Load()-before; took > 5500*time.Millisecond || got > 256<<10 {
				t.Errorf("the pod's 5 MiB took %s, and the background got %d bytes beside it", took, got)
			}
			// A pod whose registry is slow leaves the rest.
			before, began = background.Load(), time.Now()
			for range 10 {
				read(t.Context(), t, g, 64<<10, &pod)
				time.Sleep(time.Second)
			}
			if took, got := time.Since(began), background.Load()-before; got < 8<<20 {
				t.Errorf("in %s the background got %d bytes beside a slow pod", took, got)
			}
		})
		wg.Wait()
	})
}

func TestCancelledReaderLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Rate: 64 << 10})
		for _, mark := range []func(context.Context) context.Context{func(ctx context.Context) context.Context { return ctx }, InBackground} {
			ctx, cancel := context.WithTimeout(mark(t.Context()), 10*time.Second)
			began := time.Now()
			err := g.Read(ctx, 10<<20, nil)
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 10*time.Second {
				t.Errorf("%v after %s", err, took)
			}
			cancel()
		}
		// What it has not read is not counted.
		began := time.Now()
		if err := g.Read(t.Context(), 64<<10, nil); err != nil || time.Since(began) > 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestNoGateHasNoBounds(t *testing.T) {
	var turn Turn
	release, err := turn.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release()
	if err := turn.Read(t.Context(), 1<<30); err != nil {
		t.Error(err)
	}
}

// TestRoomAheadIsFree: a part that is fetched ahead takes neither the place nor the memory of another download.
func TestRoomAheadIsFree(t *testing.T) {
	g := New(Limits{Places: 2, Memory: 100})
	release := acquire(t, g)
	room := g.Ahead(60)
	if room == nil || len(room.Buffer) != 60 {
		t.Fatalf("no room: %+v", room)
	}
	if g.Ahead(10) != nil {
		t.Error("a third place")
	}
	release()
	if g.Ahead(41) != nil {
		t.Error("more memory than there is")
	}
	room.Leave()
	if g.Ahead(41) != nil {
		t.Error("memory that is in use")
	}
	room.Free()
	all := g.Ahead(100)
	if all == nil {
		t.Fatal("memory is lost")
	}
	all.Leave()
	all.Free()
	if g.used != 0 || g.held != 0 || (*Gate)(nil).Ahead(1) != nil || New(Limits{}).Ahead(1) != nil {
		t.Errorf("%d places and %d bytes are taken", g.used, g.held)
	}
}
