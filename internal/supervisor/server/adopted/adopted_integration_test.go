//go:build integration

package adopted

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// listening returns processes on a kernel whose pidfds report no exits.
func listening(t *testing.T) *Processes {
	t.Helper()
	require.Root(t)
	events, err := sysproc.ListenExits()
	if errors.Is(err, errs.Unsupported) {
		require.ExitEvents(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	dir := t.TempDir()
	p := New(filepath.Join(dir, DirName), slog.New(slog.DiscardHandler))
	p.reserve = sysfile.KeepReserve(filepath.Join(dir, "reserve"))
	p.events = events
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *Processes) recorded(t *testing.T) (pids []string) {
	t.Helper()
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		pids = append(pids, entry.Name())
	}
	return pids
}

// TestExitsOfAPredecessor: a supervisor that was replaced after an owner had recorded an exit, and before it forgot the
// process, leaves its record of the exit. The next one removes it, and keeps those of the processes that it adopts.
func TestExitsOfAPredecessor(t *testing.T) {
	p := listening(t)
	followed := &record.Process{Pid: 100, Start: 5}
	for _, exit := range []struct {
		pid   int
		start uint64
	}{{100, 5}, {101, 5}, {102, 5}} {
		if err := record.WriteJSON(p.reserve.Write, p.path(exit.pid), &recordedExit{Start: exit.start}); err != nil {
			t.Fatal(err)
		}
	}
	p.Follow(followed)
	p.Follow(&record.Process{Pid: 102, Start: 6}) // another process with that pid
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.Listen(ctx)
	if got := p.recorded(t); !slices.Equal(got, []string{"100"}) {
		t.Errorf("recorded are the exits of %q, want that of 100", got)
	}
	if _, _, ok := p.Status(t.Context(), followed); !ok {
		t.Error("the exit of an adopted process is not known any more")
	}
}

// TestForgetWhileTheExitIsRecorded: the owner of a process may learn of its exit elsewhere, at the moment in which the
// kernel reports it. No record is left, whichever comes first.
func TestForgetWhileTheExitIsRecorded(t *testing.T) {
	p := listening(t)
	for pid := range 3000 {
		process := &record.Process{Pid: pid + 1}
		p.Follow(process)
		var both sync.WaitGroup
		both.Go(func() { p.record(sysproc.ExitEvent{Pid: process.Pid}) })
		both.Go(func() { p.Forget(process) })
		both.Wait()
		if _, err := os.Lstat(filepath.Join(p.dir, strconv.Itoa(process.Pid))); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the exit of process %d stays: %v", process.Pid, err)
		}
	}
}
