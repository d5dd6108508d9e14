//go:build integration

package podinit

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// TestSealWaitsForForks: a process that is starting has the copy of the program open for writing
// until its execve. The test does the same.
func TestSealWaitsForForks(t *testing.T) {
	require.Root(t)
	dir, program := filepath.Join(t.TempDir(), "pod-init"), filepath.Join(t.TempDir(), "program")
	if err := unix.Mkfifo(program, 0o755); err != nil {
		t.Fatal(err)
	}
	sealed := make(chan error, 1)
	go func() { sealed <- sealProgram(t.Context(), dir, program, 0o111) }()
	t.Cleanup(func() {
		if err := sysmount.Detach(dir); err != nil {
			t.Error(err)
		}
	})
	feed, err := os.OpenFile(program, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The copy exists before the program is read to its end.
	copied := filepath.Join(dir, ocispec.PodInitProgram)
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(copied); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	fork, err := os.OpenFile(copied, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := feed.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-sealed:
		t.Errorf("sealed while a fork has it open: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := fork.Close(); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		return
	}
	if err := <-sealed; err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "written"), nil, 0o600); err == nil {
		t.Error("it can be written")
	}
}
