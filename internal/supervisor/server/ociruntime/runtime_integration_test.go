//go:build integration

package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	_ "github.com/opencontainers/runc/libcontainer/nsenter" // this binary is the init too

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/ownstart/filter"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// The first thread is main's, as in the supervisor: see cmd/berth-supervisor.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // main may begin on another thread

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "init":
			Init()
		case filter.Role:
			filter.Capture()
		}
	}
	if len(os.Args) > 1 && os.Args[1] == filter.Role {
		filter.Capture()
	}
	os.Exit(m.Run())
}

// bench is a runtime with a rootfs, and a cgroup of its own.
type bench struct {
	t    *testing.T
	r    *Runtime
	dir  string
	name string
	// cgroups are those of the containers.
	cgroups map[string]cgroup.Paths
}

func newBench(t *testing.T) *bench {
	t.Helper()
	require.Root(t)
	busybox, err := os.ReadFile(require.Binary(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "berth-oci-")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, name: filepath.Base(dir), cgroups: make(map[string]cgroup.Paths)}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		matches, _ := filepath.Glob("/sys/fs/cgroup/*/" + b.name)
		for _, match := range append(matches, "/sys/fs/cgroup/"+b.name) {
			if err := syscall.Rmdir(match); err != nil && !errors.Is(err, syscall.ENOENT) {
				t.Errorf("cgroup is left: %s: %v", match, err)
			}
		}
	})
	for _, sub := range []string{"proc", "dev", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, "rootfs", sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "rootfs/bin/busybox"), busybox, 0o755); err != nil {
		t.Fatal(err)
	}
	host, err := ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	if b.r, err = New(filepath.Join(dir, "runc"), host, true, func(int) bool { return false }); err != nil {
		t.Fatal(err)
	}
	return b
}

// create creates a container whose init is reaped by the end of the test.
func (b *bench) create(id string) (*Plan, *Starting) {
	b.t.Helper()
	return b.createWith(id, func(*specs.Spec) {})
}

// createWith is create with a change of the spec.
func (b *bench) createWith(id string, change func(*specs.Spec)) (*Plan, *Starting) {
	b.t.Helper()
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"/bin/busybox", "sleep", "1000"}, Cwd: "/"},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{
			CgroupsPath: "/" + b.name + "/" + id,
			Namespaces:  []specs.LinuxNamespace{{Type: "mount"}, {Type: "pid"}},
		},
	}
	change(spec)
	plan, err := b.r.Plan(spec, &PlanRequest{ID: id, Bundle: b.dir, Timeout: time.Minute})
	if err != nil {
		b.t.Fatal(err)
	}
	b.cgroups[id] = plan.Cgroups
	pid, err := b.r.Create(b.t.Context(), plan, &StdIO{})
	if err != nil {
		b.t.Fatal(err)
	}
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		if err := sysproc.AwaitExit(context.Background(), pidfd); err == nil {
			close(ended)
		}
	}()
	b.t.Cleanup(func() { b.remove(plan, pidfd) })
	return plan, &Starting{ID: id, Pidfd: pidfd, Ended: ended, Hold: func(*os.File) error { return nil }}
}

func (b *bench) remove(plan *Plan, pidfd *os.File) {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	err := plan.Cgroups.Kill(ctx)
	if _, _, reapErr := sysproc.ReapChild(pidfd); err == nil {
		err = errs.IgnoreNotFound(reapErr)
	}
	if err == nil {
		err = b.r.Remove(plan.ID)
	}
	if err == nil {
		err = plan.Cgroups.Remove(ctx)
	}
	if err != nil {
		b.t.Error(err)
	}
	pidfd.Close()
}

// TestRemoveRefusesRunningContainers: without this check, libcontainer's Destroy would kill a
// running container without an error.
func TestRemoveRefusesRunningContainers(t *testing.T) {
	b := newBench(t)
	_, s := b.create("runs")
	if err := b.r.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := b.r.Remove("runs"); !errors.Is(err, errs.State) {
		t.Errorf("remove of a running container: %v", err)
	}
	if ended, err := sysproc.PidfdEnded(s.Pidfd); ended || err != nil {
		t.Errorf("it was killed: %v %v", ended, err)
	}
	if _, err := b.r.Find("runs"); err != nil {
		t.Errorf("its state is gone: %v", err)
	}
}

// TestStartOfADeadInitLeaksNothing: libcontainer's Exec leaves a goroutine and a thread behind each
// time.
func TestStartOfADeadInitLeaksNothing(t *testing.T) {
	b := newBench(t)
	_, s := b.create("dead")
	if err := sysproc.SignalPidfd(s.Pidfd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Ended
	before := runtime.NumGoroutine()
	for range 20 {
		if err := b.r.Start(t.Context(), s); !errors.Is(err, errs.State) {
			t.Fatalf("start: %v", err)
		}
	}
	// An init that has answered may not have exited yet.
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

func TestStartTwiceAndAgain(t *testing.T) {
	b := newBench(t)
	_, s := b.create("twice")
	for range 2 {
		if err := b.r.Start(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.r.StartAgain(t.Context(), s); err != nil {
		t.Errorf("start again of what runs: %v", err)
	}
	found, err := b.r.Find("twice")
	if err != nil || found.Waiting {
		t.Errorf("found %+v %v", found, err)
	}
	_, other := b.create("again")
	if err := b.r.StartAgain(t.Context(), other); err != nil {
		t.Errorf("start again of what waits: %v", err)
	}
}

// TestStartAgainOfAnEndedContainer: the supervisor died during a start, before it reported that the
// program was executed. If the container has exited since, it did run, and its exit code is right.
// If its init was killed while it waited, it did not run.
func TestStartAgainOfAnEndedContainer(t *testing.T) {
	b := newBench(t)
	end := func(s *Starting) {
		t.Helper()
		if err := sysproc.SignalPidfd(s.Pidfd, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-s.Ended
	}
	_, ran := b.create("ran")
	fifo := b.r.fifo("ran")
	if err := os.Link(fifo, fifo+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := b.r.Start(t.Context(), ran); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fifo+".kept", fifo); err != nil {
		t.Fatal(err)
	}
	end(ran)
	if err := b.r.StartAgain(t.Context(), ran); err != nil {
		t.Errorf("start again of what has run: %v", err)
	}
	if _, err := os.Stat(fifo); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its FIFO is left: %v", err)
	}
	_, waited := b.create("waited")
	end(waited)
	if err := b.r.StartAgain(t.Context(), waited); !errors.Is(err, errs.State) {
		t.Errorf("start again of an init that was killed: %v", err)
	}
}

func TestFindAndRemoveOfAbsentContainers(t *testing.T) {
	b := newBench(t)
	if _, err := b.r.Find("nobody"); !errors.Is(err, errs.NotFound) {
		t.Errorf("find: %v", err)
	}
	if err := b.r.Remove("nobody"); err != nil {
		t.Errorf("remove: %v", err)
	}
	for _, id := range []string{"", "..", "a/b", "a b"} {
		if err := b.r.Remove(id); !errors.Is(err, errs.Invalid) {
			t.Errorf("remove of %q: %v", id, err)
		}
	}
	if err := os.Mkdir(filepath.Join(b.dir, "runc/half"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.r.Remove("half"); err != nil {
		t.Errorf("remove of what is half made: %v", err)
	}
	if ids, err := b.r.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("left: %v %v", ids, err)
	}
}
