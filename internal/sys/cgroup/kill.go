package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Kill kills every process in the cgroup, thaws it so that they can die, and
// returns when none is left. Zombies do not count.
func (p Paths) Kill(ctx context.Context) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		pids, err := p.live()
		if err != nil {
			return fmt.Errorf("cannot list the processes of a cgroup: %w", err)
		}
		if len(pids) == 0 {
			return nil
		}
		if err := p.killOnce(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot kill the processes %v of a cgroup: %w", pids, ctx.Err())
		case <-time.After(delay):
		}
	}
}

// killOnce sends SIGKILL to all processes at one instant, so that none forks away: by
// cgroup.kill (v2 since 5.14), else to a cgroup that is frozen meanwhile.
func (p Paths) killOnce() error {
	dir, unified := p[""]
	if !unified || os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) != nil {
		p.freeze()
	} else if _, hybrid := p["freezer"]; hybrid {
		p.freeze() // some may be in v1 trees only
	}
	pids, err := p.live()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // may have ended by itself; the next look shows it
	}
	if err != nil {
		err = fmt.Errorf("cannot list the processes of a cgroup: %w", err)
	}
	return errors.Join(err, p.Thaw())
}
