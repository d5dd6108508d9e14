// Package cgroup acts on a container's cgroup by its recorded paths alone, so
// that it works when nothing else of the container is left: find its processes,
// kill them, thaw, remove. Making cgroups and setting limits is libcontainer's.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Paths maps controller to directory. On cgroup v2 its only key is ""; on a
// hybrid host "" is the (controller-less) v2 tree beside the v1 ones.
type Paths map[string]string

// Check refuses paths that could be anybody's but the container's: every one must
// be absolute and clean and end in a name that contains id.
func (p Paths) Check(id string) error {
	if len(p) == 0 {
		return fmt.Errorf("no cgroup paths: %w", errs.Invalid)
	}
	for controller, dir := range p {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || id == "" || !strings.Contains(filepath.Base(dir), id) {
			return fmt.Errorf("cgroup path %q of controller %q does not end in the id %q: %w", dir, controller, id, errs.Invalid)
		}
	}
	return nil
}

// dirs returns each directory once: controllers may be mounted together.
func (p Paths) dirs() []string {
	return slices.Compact(slices.Sorted(maps.Values(p)))
}

// Sub returns the same paths with the given relative directory below the ones of
// the controllers given.
func (p Paths) Sub(name string, controllers ...string) Paths {
	sub := make(Paths)
	for _, c := range controllers {
		if dir, ok := p[c]; ok {
			sub[c] = filepath.Join(dir, name)
		}
	}
	return sub
}

// Pids returns every process in the cgroup and below it, in any hierarchy.
func (p Paths) Pids() ([]int, error) {
	found := make(map[int]bool)
	var errList []error
	for _, dir := range p.dirs() {
		errList = append(errList, walk(dir, func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if gone(err) || errors.Is(err, syscall.EOPNOTSUPP) { // a threaded cgroup lists at its root
				return nil
			}
			if err != nil {
				return err
			}
			for _, field := range strings.Fields(string(data)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					return fmt.Errorf("cannot parse %s/cgroup.procs: %w", dir, err)
				}
				if pid > 0 { // 0 is a process of a pid namespace that is not below ours
					found[pid] = true
				}
			}
			return nil
		}))
	}
	return slices.Sorted(maps.Keys(found)), errors.Join(errList...)
}

// Frozen reports whether the cgroup is paused.
func (p Paths) Frozen() (bool, error) {
	if dir, ok := p["freezer"]; ok {
		data, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		if gone(err) {
			return false, nil
		}
		return err == nil && strings.TrimSpace(string(data)) != "THAWED", err
	}
	dir, ok := p[""]
	if !ok {
		return false, nil
	}
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze"))
	if gone(err) {
		return false, nil
	}
	return err == nil && strings.TrimSpace(string(data)) == "1", err
}

// Thaw resumes the cgroup and all below it.
func (p Paths) Thaw() error {
	file, value := "cgroup.freeze", "0"
	dir, ok := p["freezer"]
	if ok {
		file, value = "freezer.state", "THAWED"
	} else if dir, ok = p[""]; !ok {
		return nil
	}
	err := walk(dir, func(dir string) error {
		err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
		if gone(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot thaw cgroup: %w", err)
	}
	return nil
}

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

// killOnce sends SIGKILL to everybody at one instant, so that nobody forks away: by
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

// live returns the processes that have not ended.
func (p Paths) live() ([]int, error) {
	pids, err := p.Pids()
	return slices.DeleteFunc(pids, ended), err
}

// Signal sends sig to every process. NotFound when there is none.
func (p Paths) Signal(sig syscall.Signal) error {
	pids, err := p.live()
	if err != nil {
		return fmt.Errorf("cannot list the processes of a cgroup: %w", err)
	}
	sent := 0
	for _, pid := range pids {
		err := syscall.Kill(pid, sig)
		if err == nil {
			sent++
		} else if !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("cannot send %v to process %d: %w", sig, pid, err)
		}
	}
	if sent == 0 {
		return fmt.Errorf("processes of the cgroup: %w", errs.NotFound)
	}
	return nil
}

// Remove removes the cgroup and all below it in every hierarchy; the processes
// must have ended. Nil when it is gone.
func (p Paths) Remove(ctx context.Context) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		var errList []error
		for _, dir := range p.dirs() {
			errList = append(errList, removeTree(dir))
		}
		err := errors.Join(errList...)
		if err == nil || !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select { // busy for the moment that the kernel needs to bury the dead
		case <-ctx.Done():
			return err
		case <-time.After(delay):
		}
	}
}

// Exist reports whether the cgroup is there, in one hierarchy at least.
func (p Paths) Exist() bool {
	return slices.ContainsFunc(p.dirs(), func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	})
}

// OOMKills returns how often the OOM killer hit the cgroup, 0 where nobody counts.
func (p Paths) OOMKills() (uint64, error) {
	file := "memory.oom_control"
	dir, ok := p["memory"]
	if !ok {
		dir, file = p[""], "memory.events"
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	if gone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read OOM kills: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, nil
}

// walk calls fn for dir and every directory below it, deepest last. What vanishes
// meanwhile is passed over.
func walk(dir string, fn func(dir string) error) error {
	if err := fn(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := walk(filepath.Join(dir, e.Name()), fn); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeTree(dir string) error {
	err := syscall.Rmdir(dir)
	if err == nil || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if gone(readErr) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err = syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("cannot remove cgroup %s: %w", dir, err)
	}
	return nil
}

// gone tells that a cgroup file's directory was removed.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}
