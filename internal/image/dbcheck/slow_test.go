package dbcheck

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/helper/program"
)

// TestSlowDisk: a database counts as damaged if the reader loops. It does not if the disk is slow,
// or if the daemon stops.
func TestSlowDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metadata.db")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for script, damaged := range map[string]bool{"exec sleep 1000": false, "while :; do :; done": true} {
		err := check(t.Context(), program.Command{"/bin/sh", "-c", script}, path, 2*time.Second)
		if err == nil || errors.Is(err, ErrDamaged) != damaged {
			t.Errorf("%s: %v", script, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := check(ctx, program.Command{"/bin/sh", "-c", "exec sleep 1000"}, path, time.Minute); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDamaged) {
		t.Errorf("a start that is ended: %v", err)
	}
}
