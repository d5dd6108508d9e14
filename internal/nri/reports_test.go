package nri

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/containerd/ttrpc"
)

// TestBrokenConnection: each error of a connection closes it. A cancelled call does not.
func TestBrokenConnection(t *testing.T) {
	failing := func(err error) error {
		table := &table{}
		invoke := func(context.Context, *ttrpc.Request, *ttrpc.Response) error { return err }
		return table.call(t.Context(), &ttrpc.Request{Method: "StopPodSandbox"}, &ttrpc.Response{}, nil, invoke)
	}
	for _, err := range []error{syscall.ECONNRESET, ttrpc.ErrClosed, ttrpc.ErrProtocol} {
		if got := failing(err); !errors.Is(got, ttrpc.ErrClosed) || !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := broken(ctx, context.Canceled); errors.Is(got, ttrpc.ErrClosed) {
		t.Errorf("a cancelled call became %v", got)
	}
}
