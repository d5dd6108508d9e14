package nri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/ttrpc"

	"github.com/berthrun/berth/internal/errs"
)

// unreadGrace is how long a call may go on after its timeout. One that waits for the answer ends at
// once; one that cannot write, since the plugin does not read, does not end.
const unreadGrace = time.Second

// bounded ends a call to a plugin that does not read. ttrpc bounds the wait for an answer and not the
// write of the request, which waits for good once the plugin's socket is full, while all pods wait for
// the library. The error makes the library close the connection, which ends the write.
func bounded(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	returned := make(chan error, 1)
	go func() {
		returned <- errs.Guard("call of an NRI plugin", func() error { return invoke(ctx, request, response) })
	}()
	select {
	case err := <-returned:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(unreadGrace)
	defer grace.Stop()
	select {
	case err := <-returned:
		return err
	case <-grace.C:
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err() // the caller has left: the plugin's next call finds out
	}
	// Not the context's error: a plugin that stays connected after a timeout does not stay here.
	return fmt.Errorf("the plugin does not read from its connection: %w", ttrpc.ErrClosed)
}
