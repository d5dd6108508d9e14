//go:build integration

package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/test/harness/hungfs"
)

// A look at a program on a file system that hangs ends with its context.
func TestHungProgram(t *testing.T) {
	at := filepath.Join(t.TempDir(), "dead")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, t.TempDir(), at)
	disk.Hang()
	var probes probe.Pool
	path := filepath.Join(at, "program")
	for range 3 {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := Check(ctx, &probes, "x", path)
		stop()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `handler "x"`) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v", err)
		}
	}
	if err := Check(t.Context(), &probes, "x", "/bin/sh"); err != nil {
		t.Errorf("another program: %v", err)
	}
	disk.Answer()
}
