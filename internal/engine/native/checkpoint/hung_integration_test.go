//go:build integration

package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/test/harness/hungfs"
)

// CRIU on a file system that hangs delays Status for a moment, and a checkpoint by a bounded time.
func TestHungTool(t *testing.T) {
	at := filepath.Join(t.TempDir(), "dead")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, t.TempDir(), at)
	disk.Hang()
	tool := &Tool{Path: filepath.Join(at, "criu")}
	began := time.Now()
	for range 10 {
		if facts := tool.Last(); !strings.Contains(facts.Fault, tool.Path+": the file system has not answered") {
			t.Errorf("%+v", facts)
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the last facts took %s", took)
	}
	if _, err := tool.Now(context.Background()); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), tool.Path) {
		t.Errorf("a checkpoint: %v", err)
	}
	disk.Answer()
}
