// Package killtree kills a process with all that it has started.
package killtree

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Kill kills the process of a command and all that it has started, as far as they
// are in the container's cgroup: its descendants, and the processes of its session, which
// stay in it when their parent has ended. A process that has left both is not found: the
// Docker Engine gives the commands of one container no cgroup of their own.
func Kill(ctx context.Context, pid int, group cgroup.Paths) error {
	own := map[int]bool{pid: true}
	for {
		pids, err := group.Pids()
		if err != nil {
			return err
		}
		left, err := killOwn(pids, pid, own)
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
func killOwn(pids []int, session int, own map[int]bool) (left int, err error) {
	procs := map[int]sysproc.Proc{}
	for _, pid := range pids {
		if proc, err := sysproc.ReadProc(pid); err == nil && !proc.Zombie() {
			procs[pid] = proc
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, proc := range procs {
			if !own[pid] && (own[proc.PPid] || proc.Session == session) {
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
