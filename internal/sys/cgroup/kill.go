package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Kill kills every process in the cgroup, thaws it so that they can die, and
// returns when none is left. Zombies do not count.
func (p Paths) Kill(ctx context.Context) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		pids, err := p.live()
		if err != nil {
			// What can be killed is killed all the same.
			return errors.Join(fmt.Errorf("cannot list the processes of a cgroup: %w", err), p.killOnce())
		}
		if len(pids) == 0 {
			return p.thawFrozen()
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

// thawFrozen thaws the cgroup if it is frozen: a process of berth's that ended during killOnce
// may have left it so.
func (p Paths) thawFrozen() error {
	frozen, err := p.Frozen()
	if err != nil {
		return fmt.Errorf("cannot read whether a cgroup is frozen: %w", err)
	}
	if !frozen {
		return nil
	}
	return p.Thaw()
}

// killOnce sends SIGKILL to all processes at the same time, so that none escapes by a fork:
// by cgroup.kill (v2 since 5.14), else to a frozen cgroup.
func (p Paths) killOnce() error {
	dir, unified := p[""]
	killed := unified && os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil
	if killed && p.unified() {
		return p.Thaw()
	}
	if _, hybrid := p["freezer"]; hybrid || !killed { // after cgroup.kill some may be in v1 trees only
		p.freeze()
	}
	pids, err := p.live()
	_, _ = p.send(pids, syscall.SIGKILL) // what is left, the next look shows
	if err != nil {
		err = fmt.Errorf("cannot list the processes of a cgroup: %w", err)
	}
	return errors.Join(err, p.Thaw())
}

// freezeTimeout bounds the wait for a frozen cgroup: a process that a dead disk holds
// in the kernel never freezes, and must be killed nevertheless.
const freezeTimeout = 200 * time.Millisecond

// freezer is how one hierarchy freezes a cgroup.
type freezer struct {
	dir string
	// file takes the values freeze and thaw.
	file, freeze, thaw string
	// state is the file that has the line frozen once all processes are.
	state, frozen string
}

// freezer prefers v1's controller, which a hybrid host uses. Not ok when no hierarchy of
// the cgroup can freeze.
func (p Paths) freezer() (f freezer, ok bool) {
	if dir, ok := p["freezer"]; ok {
		return freezer{dir, "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"}, true
	}
	dir, ok := p[""]
	return freezer{dir, "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"}, ok
}

// Frozen reports whether the cgroup is paused, or is about to be, alone or with one above it.
func (p Paths) Frozen() (bool, error) {
	f, ok := p.freezer()
	if !ok {
		return false, nil
	}
	data, err := os.ReadFile(filepath.Join(f.dir, f.file))
	frozen := err == nil && strings.TrimSpace(string(data)) != f.thaw
	if err == nil && !frozen { // on v2 the file has what was written to this cgroup, and the state has all
		frozen, err = f.reached()
	}
	if absent(err) {
		return false, nil
	}
	return frozen, err
}

// Thaw resumes the cgroup and all below it.
func (p Paths) Thaw() error {
	f, ok := p.freezer()
	if !ok {
		return nil
	}
	err := walk(f.dir, func(dir string) error {
		err := os.WriteFile(filepath.Join(dir, f.file), []byte(f.thaw), 0)
		if absent(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot thaw cgroup: %w", err)
	}
	return nil
}

// freeze stops the cgroup and all below it, if possible. If not, Kill checks again.
func (p Paths) freeze() {
	f, ok := p.freezer()
	if !ok {
		return
	}
	for deadline := time.Now().Add(freezeTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		// Write it each time: v1 can miss a process that is being forked.
		if os.WriteFile(filepath.Join(f.dir, f.file), []byte(f.freeze), 0) != nil || f.done() {
			return
		}
	}
}

// done reports whether all processes are frozen, or the cgroup is gone.
func (f *freezer) done() bool {
	frozen, err := f.reached()
	return frozen || err != nil
}

// reached reports whether all processes are frozen.
func (f *freezer) reached() (bool, error) {
	data, err := os.ReadFile(filepath.Join(f.dir, f.state))
	for line := range strings.Lines(string(data)) {
		if strings.TrimSpace(line) == f.frozen {
			return true, nil
		}
	}
	return false, err
}
