package runtimecgroup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// initPid listens for an engine that a socket unit starts.
const initPid = 1

// processes returns the engine that listens on a socket, and the containerd that is its child. Kind
// Unavailable: nobody listens.
func processes(ctx context.Context, socket string) ([]int, error) {
	engine, err := listener(ctx, socket)
	if err != nil {
		return nil, err
	}
	all, err := pids()
	if err != nil {
		return nil, err
	}
	found := []int{engine}
	for _, pid := range all {
		if proc, err := sysproc.ReadProc(pid); err == nil && proc.PPid == engine && program(pid) == "containerd" {
			found = append(found, pid)
		}
	}
	return found, nil
}

// listener returns the process that accepts the connections of a socket.
func listener(ctx context.Context, socket string) (int, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, fmt.Errorf("cannot connect to the Docker engine: %w: %w", errs.Unavailable, err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("cannot find the process behind %s: %w", socket, err)
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return 0, fmt.Errorf("cannot find the process behind %s: %w", socket, errors.Join(err, failed))
	}
	switch peer.Pid {
	case 0:
		return 0, fmt.Errorf("the process behind %s is in another PID namespace; leave docker.runtime_cgroup empty: %w", socket, errs.Unsupported)
	case initPid:
		// The peer is the process that called listen(2), and systemd did for a socket unit.
		return holder(socket)
	}
	return int(peer.Pid), nil
}

// holder returns the process to which systemd has passed a listening socket.
func holder(socket string) (int, error) {
	inode, err := inodeOf(socket)
	if err != nil {
		return 0, err
	}
	all, err := pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range all {
		if pid != initPid && holds(pid, "socket:["+inode+"]") {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("systemd listens on %s, and has not started an engine: %w", socket, errs.Unavailable)
}

// inodeOf finds a listening socket in the kernel's list of them.
func inodeOf(socket string) (string, error) {
	const table = "/proc/net/unix"
	data, err := os.ReadFile(table)
	if err != nil {
		return "", fmt.Errorf("cannot list the unix sockets: %w", err)
	}
	want, err := filepath.EvalSymlinks(socket)
	if err != nil {
		return "", fmt.Errorf("cannot find %s: %w", socket, err)
	}
	// Num RefCount Protocol Flags Type St Inode Path
	const flags, inode, path, count = 3, 6, 7, 8
	const accepts = "00010000"
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != count || fields[flags] != accepts {
			continue
		}
		if at, err := filepath.EvalSymlinks(fields[path]); err == nil && at == want {
			return fields[inode], nil
		}
	}
	return "", fmt.Errorf("%s is not in %s: berth is in another network namespace than the socket: %w", socket, table, errs.Unsupported)
}

// holds reports whether a process has a descriptor.
func holds(pid int, descriptor string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false // it has ended
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && target == descriptor {
			return true
		}
	}
	return false
}

// program is the name of the file that a process runs; "" for one that has ended.
func program(pid int) string {
	file, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(file, " (deleted)")) // an update has replaced the file
}

// pids lists all processes.
func pids() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes: %w", err)
	}
	var list []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			list = append(list, pid)
		}
	}
	return list, nil
}
