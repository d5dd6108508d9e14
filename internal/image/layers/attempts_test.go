package layers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

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
	synctest.Test(t, func(t *testing.T) {
		end := a.begin("complete", complete)
		waited := false
		go func() {
			a.await(t.Context(), "complete")
			waited = true
		}()
		synctest.Wait()
		if waited {
			t.Error("a layer whose download is complete is not waited for")
		}
		end()
		synctest.Wait()
		if !waited {
			t.Error("the attempt has ended, and is waited for")
		}
	})
	a.await(ctx, "complete") // it has ended
	defer a.begin("complete", complete)()
	cancel(errors.New("the caller has left"))
	a.await(ctx, "complete")
}
