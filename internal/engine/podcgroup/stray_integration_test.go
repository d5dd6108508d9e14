//go:build integration

package podcgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestRemoveParentEndsStrays: a process that a runtime has lost runs on in the cgroup of a sandbox
// whose containers have all ended. It is killed, and the log says so.
func TestRemoveParentEndsStrays(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newStray(t, "lost", &log, func(int) []int { return []int{1} })
	if err := s.m.RemoveParent(t.Context(), "s1", s.file, false); err != nil {
		t.Error(err)
	}
	if err := <-s.ended; err == nil {
		t.Error("the process has ended by itself")
	}
	if s.tree.Exists(s.name) {
		t.Errorf("cgroup %s is left", s.name)
	}
	if want := fmt.Sprintf("sandbox=s1 cgroup=%s/s1 pids=[%d]", s.name, s.pid); !strings.Contains(log.String(), want) {
		t.Errorf("the log has no %q: %s", want, &log)
	}
}

// TestRemoveParentSparesContainers: the removal of a sandbox goes on when a container could not be
// ended. Its processes are not killed behind its back.
func TestRemoveParentSparesContainers(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newStray(t, "runs", &log, func(pid int) []int { return []int{1, pid} })
	if err := s.m.RemoveParent(t.Context(), "s1", s.file, true); !errors.Is(err, errs.State) {
		t.Errorf("%v, want State", err)
	}
	if err := syscall.Kill(s.pid, 0); err != nil {
		t.Errorf("process %d: %v", s.pid, err)
	}
	if log.Len() > 0 {
		t.Errorf("the log has %q", &log)
	}
	if data, err := os.ReadFile(s.file); err != nil {
		t.Errorf("the record of the cgroup is gone: %q, %v", data, err)
	}
	if err := syscall.Kill(s.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	if err := s.m.RemoveParent(t.Context(), "s1", s.file, true); err != nil {
		t.Error(err)
	}
}

// TestSliceOfARunningContainer: systemd is not asked to stop a slice in which a container runs.
func TestSliceOfARunningContainer(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	runs := true
	s := newStray(t, "slice", &log, func(pid int) []int {
		if runs {
			return []int{pid}
		}
		return nil
	})
	m := New(Config{
		Instance: "stray", Driver: Systemd, DefaultParent: strings.TrimPrefix(strings.ReplaceAll(s.name, "-", "_"), "/") + ".slice",
		Running: s.m.cfg.Running, Log: s.m.cfg.Log,
	}, s.tree)
	asked := 0
	m.slices.connect = func(context.Context) (*dbus.Conn, error) {
		asked++
		return nil, errors.New("no systemd")
	}
	below, err := cgroup.SlicePath(m.podSlice("s1"))
	if err != nil {
		t.Fatal(err)
	}
	top := "/" + m.cfg.DefaultParent
	t.Cleanup(func() { _ = s.tree.Paths(top).Remove(context.WithoutCancel(t.Context())) })
	s.put(below + "/c1")
	if err := m.RemoveParent(t.Context(), "s1", s.file, true); !errors.Is(err, errs.State) || asked != 0 {
		t.Errorf("while a container runs: %v, want State; systemd was asked %d times", err, asked)
	}
	runs = false
	if err := m.RemoveParent(t.Context(), "s1", s.file, true); !errors.Is(err, errs.Unavailable) || asked != 1 {
		t.Errorf("without containers: %v, want that of systemd; it was asked %d times", err, asked)
	}
	if want := fmt.Sprintf("pids=[%d]", s.pid); !strings.Contains(log.String(), want) {
		t.Errorf("the log has no %q: %s", want, &log)
	}
	s.put(s.name + "/s1/c1")
}

// put moves the process to a cgroup, which it makes.
func (s *stray) put(path string) {
	s.t.Helper()
	if err := s.tree.Make(path); err != nil {
		s.t.Fatal(err)
	}
	for _, dir := range s.tree.Paths(path) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, s.pid), 0); err != nil {
			s.t.Logf("%s: %v", dir, err) // a hierarchy without the cgroup
		}
	}
}

// stray is a process in a cgroup below that of the sandbox s1.
type stray struct {
	t          *testing.T
	m          *Manager
	tree       *cgroup.Tree
	name, file string
	pid        int
	// ended receives the process' end once it is reaped.
	ended chan error
}

// newStray starts a stray. running returns what the runtime says of it.
func newStray(t *testing.T, suffix string, log io.Writer, running func(pid int) []int) *stray {
	t.Helper()
	require.Root(t)
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	s := &stray{
		t: t, tree: tree, name: fmt.Sprintf("/berth-stray-%s%d", suffix, os.Getpid()), file: filepath.Join(t.TempDir(), "own"), ended: make(chan error, 1),
	}
	s.m = New(Config{
		Instance: "stray", Driver: Cgroupfs, Prefix: "test", DefaultParent: s.name, Log: slog.New(slog.NewTextHandler(log, nil)),
		Running: func(context.Context, string) ([]int, error) { return running(s.pid), nil },
	}, tree)
	parent, err := s.m.MakeParent(t.Context(), "s1", "", s.file)
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command("sleep", "100000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = process.Process.Pid
	go func() { s.ended <- process.Wait() }()
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = tree.Paths(s.name).Remove(context.WithoutCancel(t.Context()))
	})
	s.put(parent + "/c1")
	return s
}
