//go:build integration

package differential

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysns"
)

// holdSysfs keeps the sysfs of a network namespace, which can be written. The kernel has one for all containers
// of the namespace: the first one decides for the others whether it is read-only.
func holdSysfs(t *testing.T, netns string) {
	t.Helper()
	type made struct {
		fd  int
		err error
	}
	done := make(chan made)
	sysns.GoOnThread(func() {
		fd, err := mountSysfs(netns)
		done <- made{fd, err}
	})
	sysfs := <-done
	if sysfs.err != nil {
		t.Fatalf("cannot hold the sysfs of %s: %v", netns, sysfs.err)
	}
	t.Cleanup(func() { unix.Close(sysfs.fd) })
}

// mountSysfs moves the calling thread to a network namespace, and returns a detached mount of its sysfs.
func mountSysfs(netns string) (int, error) {
	ns, err := os.Open(netns)
	if err != nil {
		return -1, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return -1, err
	}
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}

// pin makes the namespaces of a pod, which the containers of both sides join.
func (p *pair) pin() {
	p.t.Helper()
	for _, kind := range []string{"ipc", "uts", "net"} {
		p.pinned[kind] = filepath.Join(p.dir, "pod-"+kind)
	}
	namespaces := sysns.PodNamespaces{IPC: p.pinned["ipc"], UTS: p.pinned["uts"], Net: p.pinned["net"], Hostname: "pod"}
	if err := namespaces.Make(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		for _, path := range p.pinned {
			if err := sysns.Unpin(path); err != nil {
				p.t.Error(err)
			}
		}
	})
	mapped := []syscall.SysProcIDMap{{HostID: mappedRoot, Size: 65536}}
	for _, kind := range []string{"user", "mapped ipc", "mapped uts", "mapped net"} {
		p.pinned[kind] = filepath.Join(p.dir, "pod-"+strings.ReplaceAll(kind, " ", "-"))
	}
	namespaces = sysns.PodNamespaces{
		User: &sysns.UserNamespace{Pin: p.pinned["user"], UIDs: mapped, GIDs: mapped, Program: supervisorProgram(), Args: []string{"hold"}},
		IPC:  p.pinned["mapped ipc"], UTS: p.pinned["mapped uts"], Net: p.pinned["mapped net"], Hostname: "pod",
	}
	if err := namespaces.Make(); err != nil {
		p.t.Fatal(err)
	}
	holdSysfs(p.t, p.pinned["net"])
	holdSysfs(p.t, p.pinned["mapped net"])
	p.pinMappedPID()
	// A process whose PID namespace containers may share.
	holder := exec.Command("cat") // it ends with its input, also when the test is killed
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	input, err := holder.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.pinned["pid"] = filepath.Join(p.dir, "pod-pid")
	if err := sysns.Pin(fmt.Sprintf("/proc/%d/ns/pid", holder.Process.Pid), p.pinned["pid"]); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = input.Close()
		_ = holder.Wait()
	})
}

// pinMappedPID makes the PID namespace of a pod with a user namespace, which owns it.
func (p *pair) pinMappedPID() {
	p.t.Helper()
	holder := exec.Command("nsenter", "--user="+p.pinned["user"], "--setuid=0", "--setgid=0", "unshare", "--pid", "--fork", "cat")
	input, err := holder.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = input.Close()
		_ = holder.Wait()
	})
	host, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		p.t.Fatal(err)
	}
	made := fmt.Sprintf("/proc/%d/ns/pid_for_children", holder.Process.Pid)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		// It cannot be read before a process is in it.
		if target, err := os.Readlink(made); err == nil && target != host {
			break
		}
		if time.Now().After(end) {
			p.t.Fatal("no process made a PID namespace")
		}
	}
	p.pinned["mapped pid"] = filepath.Join(p.dir, "pod-mapped-pid")
	if err := sysns.Pin(made, p.pinned["mapped pid"]); err != nil {
		p.t.Fatal(err)
	}
}
