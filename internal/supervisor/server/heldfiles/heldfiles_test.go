package heldfiles

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// slowKeeper answers when the context of the request ends, or with its error.
type slowKeeper struct {
	Keeper
	err error
}

func (k slowKeeper) Hold(ctx context.Context, _ string, _ ...*os.File) error {
	if k.err != nil {
		return k.err
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestHoldEndsWithItsRequest: Hold does not wait for the keeper after its request has ended. This
// does not count as an error of the keeper.
func TestHoldEndsWithItsRequest(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	ended, end := context.WithCancel(t.Context())
	end()
	v := New(slowKeeper{}, log)
	v.Hold(ended, "box/pidfd", os.Stdin)
	if len(v.Get("box/pidfd")) != 1 || text.Len() > 0 {
		t.Errorf("held %v, logged %q", v.Keys(), text.String())
	}
	v = New(slowKeeper{err: errors.New("no room")}, log)
	v.Hold(ended, "box/pidfd", os.Stdin)
	if !strings.Contains(text.String(), "no room") {
		t.Errorf("logged %q", text.String())
	}
}
