package criclient

import (
	"context"
	"path/filepath"
	"testing"
	"time"
)

// TestWatchConnection: a restart is reported although nothing is called meanwhile.
func TestWatchConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	let := make(chan struct{})
	close(let)
	stop := serveAt(t, path, &versions{let: let})
	conn := dialFor(t, path, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan bool), make(chan struct{})
	go func() {
		defer close(ended)
		conn.WatchConnection(ctx, func(connected bool) { changes <- connected })
	}()
	if err := version(t, conn); err != nil {
		t.Fatal(err)
	}
	if !<-changes {
		t.Error("the first begin of the connection was reported as its end")
	}
	for range 2 {
		stop()
		if <-changes {
			t.Error("the end of the connection was reported as its begin")
		}
		stop = serveAt(t, path, &versions{let: let})
		if !<-changes {
			t.Error("another begin of the connection was reported as its end")
		}
	}
	stop()
	<-changes
	cancel()
	<-ended
}
