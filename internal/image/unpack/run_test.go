package unpack

import (
	"context"
	"errors"
	"testing"
)

// TestMarksEndWithTheirPull: the list comes from a child that may be hostile, and a pull that is given up does not work it off.
func TestMarksEndWithTheirPull(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the pull was given up")
	cancel(reason)
	if err := markOpaque(ctx, t.TempDir(), []string{"a", "b"}); !errors.Is(err, reason) {
		t.Errorf("error %v", err)
	}
}
