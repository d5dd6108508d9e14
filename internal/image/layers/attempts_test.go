package layers

import (
	"context"
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/image/database/growing"
)

// TestAttempts: others wait for a layer that is unpacked while it is fetched only once its download is complete.
func TestAttempts(t *testing.T) {
	var a attempts
	ctx, cancel := context.WithCancelCause(t.Context())
	slow, complete := growing.New(1), growing.New(0)
	complete.Begin()
	end := a.begin("slow", slow)
	a.begin("slow", complete)() // of another blob, which ends nothing
	a.await(ctx, "slow")        // does not wait
	end()
	end = a.begin("complete", complete)
	waited := make(chan struct{})
	go func() {
		a.await(ctx, "complete")
		close(waited)
	}()
	end()
	<-waited
	a.await(ctx, "complete") // it has ended
	defer a.begin("complete", complete)()
	cancel(errors.New("the caller has left"))
	a.await(ctx, "complete")
}
