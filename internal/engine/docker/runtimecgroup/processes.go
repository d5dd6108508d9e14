package runtimecgroup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// initPid listens for an engine that a socket unit starts.
const initPid = 1

// process is a process of the engine.
type process struct {
	sysproc.Proc
	// fits reports whether the process with this pid is still what it was found as.
	fits func() bool
}

// same reports whether the pid is that of this process still. A pid can become another process's.
func (p *process) same() bool {
	now, err := sysproc.ReadProc(p.Pid)
	return err == nil && now.Start == p.Start && p.fits()
}

// processes returns the engine that listens on a socket, and the containerd that is its child. Kind
// Unavailable: nobody listens.
func processes(ctx context.Context, socket string) ([]process, error) {
	peer, err := listener(ctx, socket)
	if err != nil {
		return nil, err
	}
	inodes, err := inodesOf(socket)
	if err != nil {
		return nil, err
	}
	all, err := list()
	if err != nil {
		return nil, err
	}
	engine, err := engineOf(socket, peer, all, func(pid int) bool { return holds(pid, inodes) })
	if err != nil {
		return nil, err
	}
	found := []process{{engine, func() bool { return holds(engine.Pid, inodes) }}}
	for _, proc := range all {
		isContainerd := func() bool {
			now, err := sysproc.ReadProc(proc.Pid)
			return err == nil && now.PPid == engine.Pid && program(proc.Pid) == "containerd"
		}
		if proc.PPid == engine.Pid && isContainerd() {
			found = append(found, process{proc, isContainerd})
		}
	}
	return found, nil
}

// listener returns the pid of the process that called listen(2) on a socket. It may have ended since
// then, and the pid may be another process's.
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
	if peer.Pid == 0 {
		return 0, fmt.Errorf("the process behind %s is in another PID namespace; leave docker.runtime_cgroup empty: %w", socket, errs.Unsupported)
	}
	return int(peer.Pid), nil
}

// engineOf returns the process that accepts the connections of a socket: the peer, if it still has
// the socket; else the one process that has it, to which systemd or an earlier engine has passed it.
// A child of that process may have inherited it. Kind Unavailable: only systemd has it. State: several
// processes have it.
func engineOf(socket string, peer int, all []sysproc.Proc, holds func(pid int) bool) (sysproc.Proc, error) {
	holders := map[int]sysproc.Proc{}
	for _, proc := range all {
		if proc.Pid != initPid && holds(proc.Pid) {
			holders[proc.Pid] = proc
		}
	}
	if engine, ok := holders[peer]; ok {
		return engine, nil
	}
	children := maps.Clone(holders)
	maps.DeleteFunc(children, func(_ int, proc sysproc.Proc) bool { _, ok := holders[proc.PPid]; return !ok })
	maps.DeleteFunc(holders, func(pid int, _ sysproc.Proc) bool { _, ok := children[pid]; return ok })
	switch len(holders) {
	case 0:
		return sysproc.Proc{}, fmt.Errorf("systemd listens on %s, and has not started an engine: %w", socket, errs.Unavailable)
	case 1:
		return slices.Collect(maps.Values(holders))[0], nil
	}
	return sysproc.Proc{}, fmt.Errorf("the processes %v listen on %s, and it is not known which of them is the engine; "+
		"end the others, or leave docker.runtime_cgroup empty: %w", slices.Sorted(maps.Keys(holders)), socket, errs.State)
}

// inodesOf finds the listening sockets with a path in the kernel's list of them. One whose file was
// removed still has its path, so that there may be several.
func inodesOf(socket string) (inodes []string, err error) {
	const table = "/proc/net/unix"
	data, err := os.ReadFile(table)
	if err != nil {
		return nil, fmt.Errorf("cannot list the unix sockets: %w", err)
	}
	want, err := filepath.EvalSymlinks(socket)
	if err != nil {
		return nil, fmt.Errorf("cannot find %s: %w", socket, err)
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
			inodes = append(inodes, fields[inode])
		}
	}
	if len(inodes) == 0 {
		return nil, fmt.Errorf("%s is not in %s: berth is in another network namespace than the socket: %w", socket, table, errs.Unsupported)
	}
	return inodes, nil
}

// holds reports whether a process has a descriptor of one of the sockets.
func holds(pid int, inodes []string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false // it has ended
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		if err == nil && isSocket && slices.Contains(inodes, strings.TrimSuffix(inode, "]")) {
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

// list returns all processes.
func list() ([]sysproc.Proc, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes: %w", err)
	}
	var all []sysproc.Proc
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			if proc, err := sysproc.ReadProc(pid); err == nil { // else it has ended meanwhile
				all = append(all, proc)
			}
		}
	}
	return all, nil
}
