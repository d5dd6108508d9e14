// Package killtree kills a process with all that it has started.
package killtree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Strays kills the processes in a container's cgroup, and removes the cgroup. An engine that was
// killed while it started a container may have lost its process. killed says that there was one.
// Invalid when the cgroup's name does not contain the engine's id of the container.
func Strays(ctx context.Context, engineID string, group cgroup.Paths) (killed bool, err error) {
	if err := group.Check(engineID); err != nil {
		return false, err
	}
	if !group.Exist() {
		return false, nil
	}
	pids, err := group.Pids()
	if err != nil {
		return false, err
	}
	return len(pids) > 0, errors.Join(group.Kill(ctx), group.Remove(ctx))
}

// Kill kills the process of a command and all that it has started, as far as they are in the
// container's cgroup: its descendants, the processes of its session, and those that have
// inherited mark, an entry NAME=VALUE of its environment, in whatever session they are. pid is 0
// for a command that has ended: what it has started may run on. The Docker Engine gives the
// commands of one container no cgroup of their own.
func Kill(ctx context.Context, mark string, pid int, group cgroup.Paths) error {
	own := map[int]bool{}
	if pid > 0 {
		own[pid] = true
	}
	for {
		pids, err := group.Pids()
		if err != nil {
			return err
		}
		left, err := killOwn(pids, pid, mark, own)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end: %w", left, errs.Deadline)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// killOwn kills those of the processes that belong to own, to which it adds their children.
// It returns how many of them have not ended.
func killOwn(pids []int, session int, mark string, own map[int]bool) (left int, err error) {
	procs := map[int]sysproc.Proc{}
	for _, pid := range pids {
		if proc, err := sysproc.ReadProc(pid); err == nil && !proc.Zombie() {
			procs[pid] = proc
			if hasInherited(pid, mark) {
				own[pid] = true
			}
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, proc := range procs {
			if !own[pid] && (own[proc.PPid] || session > 0 && proc.Session == session) {
				own[pid], grown = true, true
			}
		}
	}
	for pid := range procs {
		if !own[pid] {
			continue
		}
		left++
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return left, fmt.Errorf("cannot kill process %d: %w", pid, err)
		}
	}
	return left, nil
}

// hasInherited reports whether a process was started with an entry in its environment.
func hasInherited(pid int, mark string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && slices.Contains(strings.Split(string(environ), "\x00"), mark)
}
