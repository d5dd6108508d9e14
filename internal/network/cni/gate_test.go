package cni

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestGCGate: a collection does not begin beside an ADD. An ADD ends a collection, and waits for
// its end.
func TestGCGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gcGate
		if !g.run(t.Context(), func(context.Context) {}) {
			t.Error("a collection alone did not finish")
		}
		if err := g.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g.run(t.Context(), func(context.Context) { t.Error("a collection ran beside an ADD") }) {
			t.Error("a collection beside an ADD finished")
		}
		g.leave()
		release := make(chan struct{})
		finished := make(chan bool)
		go func() {
			finished <- g.run(t.Context(), func(ctx context.Context) {
				<-ctx.Done()
				<-release
			})
		}()
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.enter(ended); err == nil {
			t.Error("an ADD whose caller has left entered beside a collection")
		}
		entered := make(chan error)
		go func() { entered <- g.enter(t.Context()) }()
		synctest.Wait()
		select {
		case <-entered:
			t.Error("an ADD did not wait for the end of the collection")
		default:
		}
		close(release)
		if <-finished {
			t.Error("a collection that an ADD ended has finished")
		}
		if err := <-entered; err != nil {
			t.Error(err)
		}
	})
}
