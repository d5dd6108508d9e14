package cni

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// enters enters the gate in the background. The channel has the leave.
func enters(t *testing.T, g *gcGate, ends bool) chan func() {
	entered := make(chan func(), 1)
	go func() {
		leave, err := g.enter(t.Context(), "a call", ends)
		if err != nil {
			t.Error(err)
		}
		entered <- leave
	}()
	synctest.Wait()
	return entered
}

// TestGCGate: a collection does not begin beside an ADD or DEL. They wait for the end of a collection, which an ADD ends
// before its next call of a plugin, and never within one.
func TestGCGate(t *testing.T) {
	for name, ends := range map[string]bool{"ADD": true, "DEL": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g gcGate
				leave, err := g.enter(t.Context(), name, ends)
				if err != nil {
					t.Fatal(err)
				}
				if err := g.run(t.Context(), gcWait, func(context.Context) error { t.Error("a collection runs beside " + name); return nil }); !errors.Is(err, errBusy) {
					t.Errorf("a collection beside %s: %v", name, err)
				}
				time.AfterFunc(gcWait/2, leave)
				release := make(chan struct{})
				finished := make(chan error, 1)
				go func() {
					finished <- g.run(t.Context(), gcWait, func(ctx context.Context) error {
						if err := g.next(ctx); err != nil {
							t.Error(err)
						}
						<-release
						return errors.Join(ctx.Err(), g.next(ctx))
					})
				}()
				time.Sleep(gcWait/2 + time.Second) // the collection has begun when the call left
				gone, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := g.enter(gone, name, false); err == nil {
					t.Error("a call whose caller has left entered beside a collection")
				}
				entered := enters(t, &g, ends)
				if len(entered) > 0 {
					t.Error("it did not wait for the end of the collection")
				}
				close(release)
				if err := <-finished; errors.Is(err, errEnded) != ends || !ends && err != nil {
					t.Errorf("the collection: %v", err)
				}
				(<-entered)()
				if err := g.run(t.Context(), 0, g.next); err != nil {
					t.Errorf("the next collection: %v", err)
				}
			})
		})
	}
}

// TestGCGateOpens: a collection whose plugin does not end, although it was killed, holds up no pod for longer than that. No
// other collection begins until it has ended.
func TestGCGateOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gcGate
		release := make(chan struct{})
		finished := make(chan error, 1)
		began := time.Now()
		go func() {
			finished <- g.run(t.Context(), 0, func(context.Context) error { <-release; return nil })
		}()
		synctest.Wait()
		(<-enters(t, &g, true))()
		if took := time.Since(began); took != gcTimeout+gcGrace {
			t.Errorf("a pod waited for %s", took)
		}
		if err := <-finished; !errors.Is(err, errHung) {
			t.Errorf("the collection: %v", err)
		}
		if err := g.run(t.Context(), gcWait, g.next); !errors.Is(err, errHung) {
			t.Errorf("a collection beside that which hangs: %v", err)
		}
		close(release)
		synctest.Wait()
		if err := g.run(t.Context(), 0, g.next); err != nil {
			t.Errorf("the next collection: %v", err)
		}
	})
}
