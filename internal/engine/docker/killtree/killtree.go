// Package killtree kills a process with all that it has started.
package killtree

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	c := command{mark: mark, session: pid, own: map[int]uint64{}}
	if first, err := sysproc.ReadProc(pid); pid > 0 && err == nil {
		c.leader, c.own[pid] = first.Start, first.Start
	}
	for {
		pids, err := group.Pids()
		if err != nil {
			return err
		}
		own := c.find(pids)
		if len(own) == 0 {
			return nil
		}
		if err := kill(own, group); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end: %w", len(own), errs.Deadline)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// command is what is known of a command and its processes. A process is its pid and its start: the
// kernel gives a pid to another process once it is free.
type command struct {
	mark string
	// session is the command's session, whose number is the pid of its first process; 0 for none.
	session int
	// leader is the start of that process, 0 if it was gone.
	leader uint64
	// own has the starts of the processes that belong to the command, by pid.
	own map[int]uint64
}

// find returns those of the processes that belong to the command and have not ended.
func (c *command) find(pids []int) []sysproc.Proc {
	procs := map[int]sysproc.Proc{}
	for _, pid := range pids {
		if proc, err := sysproc.ReadProc(pid); err == nil && !proc.Zombie() {
			procs[pid] = proc
		}
	}
	if leader, exists := procs[c.session]; exists && leader.Start != c.leader {
		c.session = 0 // the session has ended, and another has its number
	}
	return c.among(procs, func(pid int) bool { return hasInherited(pid, c.mark) })
}

// among returns those of the processes that belong to the command. It forgets those that are not
// among them.
func (c *command) among(procs map[int]sysproc.Proc, inherited func(pid int) bool) []sysproc.Proc {
	maps.DeleteFunc(c.own, func(pid int, start uint64) bool { return procs[pid].Start != start })
	for pid, proc := range procs {
		if c.session > 0 && proc.Session == c.session || inherited(pid) {
			c.own[pid] = proc.Start
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, proc := range procs {
			_, isOwn := c.own[pid]
			if _, isChild := c.own[proc.PPid]; isChild && !isOwn {
				c.own[pid], grown = proc.Start, true
			}
		}
	}
	own := make([]sysproc.Proc, 0, len(c.own))
	for pid := range c.own {
		own = append(own, procs[pid])
	}
	return own
}

// kill kills processes as far as they are in the cgroup still. It holds a descriptor of each before
// it looks where they are: none of their pids can become another's between the look and the signal.
func kill(procs []sysproc.Proc, group cgroup.Paths) error {
	held := map[int]*os.File{}
	defer func() {
		for _, pidfd := range held {
			pidfd.Close()
		}
	}()
	for _, proc := range procs {
		pidfd, err := sysproc.OpenPidfd(proc.Pid)
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		held[proc.Pid] = pidfd
	}
	there, err := group.Pids()
	if err != nil {
		return err
	}
	for _, proc := range procs {
		now, err := sysproc.ReadProc(proc.Pid)
		if held[proc.Pid] == nil || err != nil || now.Start != proc.Start || !slices.Contains(there, proc.Pid) {
			continue // it has ended, or has left the container
		}
		if err := sysproc.SignalPidfd(held[proc.Pid], syscall.SIGKILL); errs.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot kill process %d: %w", proc.Pid, err)
		}
	}
	return nil
}

// hasInherited reports whether a process was started with an entry in its environment.
func hasInherited(pid int, mark string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && slices.Contains(strings.Split(string(environ), "\x00"), mark)
}
