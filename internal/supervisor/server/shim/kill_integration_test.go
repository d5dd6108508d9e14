//go:build integration

package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/test/harness/hungfs"
)

// began starts a program, which ends with the test.
func began(t *testing.T, program string, args ...string) (*exec.Cmd, process) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	proc, err := sysproc.ReadProc(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, process{proc.Pid, proc.Start}
}

// beyondKill returns a process that waits for a disk, and that SIGKILL has not ended.
func beyondKill(t *testing.T, file string) process {
	t.Helper()
	for deadline := time.Now().Add(require.Patience(30 * time.Second)); time.Now().Before(deadline); {
		cmd, each := began(t, "cat", file)
		time.Sleep(50 * time.Millisecond) // until the disk has its request: before that, SIGKILL ends it
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if proc, err := sysproc.ReadProc(each.Pid); err == nil && proc.State == 'D' {
			return each
		}
	}
	t.Fatal("SIGKILL ends every process that waits for the disk")
	return process{}
}

// TestKillGoesOn: a process that SIGKILL does not end, because it waits for a dead disk, is reported, and the others end.
func TestKillGoesOn(t *testing.T) {
	behind, at := t.TempDir(), filepath.Join(t.TempDir(), "dead")
	if err := errors.Join(os.Mkdir(at, 0o755), os.WriteFile(filepath.Join(behind, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, behind, at)
	disk.Hang()
	defer disk.Answer()
	stuck := beyondKill(t, filepath.Join(at, "file"))
	other, last := began(t, "sleep", "1000")
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	err := (&podState{Processes: []process{stuck, last}}).kill(ctx)
	if want := fmt.Sprintf("process %d of the shim does not end", stuck.Pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	select {
	case <-ended:
	case <-time.After(require.Patience(5 * time.Second)):
		t.Error("the other process was not killed")
	}
}
