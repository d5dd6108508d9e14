//go:build integration

package runtimecgroup

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// group returns a cgroup for one test, which must be empty at its end.
func group(t *testing.T, tree *cgroup.Tree) string {
	t.Helper()
	name := "/berth-runtimecgroup-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		if err := tree.Remove(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

func findTree(t *testing.T) *cgroup.Tree {
	t.Helper()
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// leaveUnit moves the test, and the engines that it starts, out of a service of systemd's in which it
// may have been started: on cgroup v2 an engine stays in its service.
func leaveUnit(t *testing.T, tree *cgroup.Tree) {
	t.Helper()
	if !tree.V2 {
		return
	}
	now, err := tree.OfProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	name := "/berth-runtimecgroup-test-" + strconv.Itoa(os.Getpid())
	if err := tree.Admit(name, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tree.Admit(tree.PathOf(now), os.Getpid()), tree.Remove(name)); err != nil {
			t.Error(err)
		}
	})
}

// await waits until a condition holds. There are no events for the cgroup of a process.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(require.Patience(30 * time.Second))
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestEngineIsKeptInItsCgroup: dockerd and its containerd are in the cgroup, again after a restart
// of the engine. A container and its shim are not.
func TestEngineIsKeptInItsCgroup(t *testing.T) {
	tree := findTree(t)
	cgroupPath := group(t, tree)
	leaveUnit(t, tree)
	d := dockertest.Start(t, dockertest.Options{LiveRestore: true})
	k, err := Start(Options{Endpoint: d.Endpoint, Cgroup: cgroupPath, Tree: tree, Period: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	socket := strings.TrimPrefix(d.Endpoint, "unix://")
	settled := func() bool {
		found, err := processes(t.Context(), socket)
		if err != nil || len(found) != 2 || found[0].Pid != d.Pid() {
			return false
		}
		for _, p := range found {
			if in, err := tree.Admitted(cgroupPath, p.Pid); err != nil || !in {
				return false
			}
		}
		return true
	}
	await(t, "dockerd and containerd in the cgroup", settled)
	found, err := processes(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := program(found[0].Pid), program(found[1].Pid); a != "dockerd" || b != "containerd" {
		t.Errorf("the processes are %s and %s", a, b)
	}
	for _, p := range found {
		scoreIsLowered(t, p.Pid)
	}
	d.Kill()
	d.Launch()
	await(t, "the new dockerd and containerd in the cgroup", settled)
}

// scoreIsLowered checks a process where the host allows it to be spared.
func scoreIsLowered(t *testing.T, pid int) {
	t.Helper()
	own, err := sysproc.ReadCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(own.Bounding, "CAP_SYS_RESOURCE") {
		t.Log("oom_score_adj is not checked: this host does not allow root to lower it")
		return
	}
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"))
	if err != nil || strings.TrimSpace(string(data)) != strconv.Itoa(oomScoreAdj) {
		t.Errorf("oom_score_adj of process %d: %q, %v", pid, data, err)
	}
}

// TestSocketThatWasPassed: a process that was passed a listening socket is found by the socket, also
// by a link to it, and when another socket had its path before.
func TestSocketThatWasPassed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	earlier, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer earlier.Close()
	earlier.SetUnlinkOnClose(false)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(socket, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{socket, link} {
		found, err := processes(t.Context(), path)
		if err != nil || len(found) != 1 || found[0].Pid != os.Getpid() || !found[0].same() {
			t.Errorf("%s: %v, %v; want process %d", path, found, err, os.Getpid())
		}
		if inodes, err := inodesOf(path); err != nil || len(inodes) != 2 {
			t.Errorf("%s: sockets %v, %v; want both", path, inodes, err)
		}
	}
	if err := earlier.Close(); err != nil {
		t.Fatal(err)
	}

	heir := exec.Command("sleep", "100000")
	heir.ExtraFiles = []*os.File{file}
	if err := heir.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = heir.Process.Kill()
		_ = heir.Wait()
	})
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(file.Close(), listener.Close()); err != nil {
		t.Fatal(err)
	}
	found, err := processes(t.Context(), socket)
	if err != nil || len(found) != 1 || found[0].Pid != heir.Process.Pid {
		t.Fatalf("%v, %v; want process %d, and not the one that called listen", found, err, heir.Process.Pid)
	}
	if err := heir.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = heir.Wait() // it was killed
	if found[0].same() {
		t.Error("a process that has ended is the same")
	}
	if _, err := processes(t.Context(), socket); !errors.Is(err, errs.Unavailable) {
		t.Errorf("nobody listens: %v, want Unavailable", err)
	}
}
