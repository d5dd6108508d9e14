package podcgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// parentOf is the cgroup of the sandbox's containers: a path (cgroupfs) or a slice (systemd).
// own is true when no other sandbox has it, because the request named none.
func (m *Manager) parentOf(id, requested string) (parent string, own bool, err error) {
	isSlice := strings.HasSuffix(requested, ".slice")
	switch {
	case m.systemd() && requested == "":
		return m.podSlice(id), true, nil
	case m.systemd() && !isSlice:
		return "", false, fmt.Errorf("config.linux.cgroup_parent: %q is not a slice, but the cgroup driver is systemd: %w", requested, errs.Invalid)
	case m.systemd():
		return path.Base(requested), false, nil
	case requested == "":
		return path.Join(m.cfg.DefaultParent, id), true, nil
	case isSlice:
		return "", false, fmt.Errorf("config.linux.cgroup_parent: %q is a slice, but the cgroup driver is cgroupfs: %w", requested, errs.Invalid)
	}
	return path.Join("/", requested), false, nil
}

// MakeParent makes the cgroup of a sandbox's containers where it is missing, and returns it.
// requested is the parent in the request, "" for none. MakeParent first records in ownFile that
// RemoveParent may remove it. A slice needs no record: the sandbox's id is in its name.
func (m *Manager) MakeParent(ctx context.Context, id, requested, ownFile string) (string, error) {
	parent, own, err := m.parentOf(id, requested)
	if err != nil {
		return "", err
	}
	if m.systemd() {
		if own {
			err = m.startSlice(ctx, parent)
		}
		return parent, err
	}
	top := m.cfg.DefaultParent
	if !own {
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.readAdopted(); err != nil {
			return "", err
		}
		if top = m.tree.Missing(parent); top == "" {
			top = m.ownParents[parent]
		}
		if top == "" {
			return parent, nil
		}
		// Other sandboxes may use it as well. The last one removes it.
		m.ownParents[parent] = top
	}
	if err := os.WriteFile(ownFile, []byte(top+"\n"+parent), 0o600); err != nil {
		return "", fmt.Errorf("cannot record the sandbox's cgroup: %w", err)
	}
	return parent, m.tree.Make(parent)
}

// RemoveParent removes what MakeParent made. Nil when there is nothing. last is true when
// the sandbox has no containers any more.
func (m *Manager) RemoveParent(ctx context.Context, id, ownFile string, last bool) error {
	if m.systemd() {
		return m.removeSlice(ctx, id)
	}
	top, parent, err := readOwnCgroup(ownFile)
	if err != nil || parent == "" {
		return err
	}
	if path.Base(parent) == id {
		if err := m.removeBusy(ctx, id, parent); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tree.RemoveEmpty(parent, top)
	if !m.tree.Exists(parent) {
		delete(m.ownParents, parent)
	} else if !last {
		return nil // exited containers have cgroups in it until they are removed
	}
	// A cgroup that is made at this path from now on is not the sandbox's.
	if err := errs.IgnoreNotExist(os.Remove(ownFile)); err != nil {
		return fmt.Errorf("cannot remove the record of the sandbox's cgroup: %w", err)
	}
	return nil
}

// busyTimeout bounds the wait until killed processes have left a cgroup.
const busyTimeout = 2 * time.Second

// removeBusy removes a cgroup of one sandbox. A container whose start failed is recorded as exited
// when its init has been killed, which may be a moment before the init is gone. Processes that are
// there after that have been lost by the runtime, and are killed.
func (m *Manager) removeBusy(ctx context.Context, id, parent string) error {
	waiting, stop := context.WithTimeout(ctx, busyTimeout)
	defer stop()
	for {
		err := m.tree.Remove(parent)
		if err == nil || !errors.Is(err, errs.State) {
			return err
		}
		select {
		case <-waiting.Done():
			return m.killLost(ctx, id, parent)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// killLost kills the processes in a sandbox's cgroup, and removes it. Kind State, and nothing is
// killed, when a container runs in it: the removal of a sandbox does not wait for the end of a
// container that could not be ended.
func (m *Manager) killLost(ctx context.Context, id, parent string) error {
	group := m.tree.Paths(parent)
	if err := m.checkLost(ctx, id, parent, group); err != nil {
		return err
	}
	return errors.Join(group.Kill(ctx), group.Remove(ctx))
}

// checkLost logs the processes in a sandbox's cgroup, which are to be killed. Kind State when one of
// them is of a container that runs.
func (m *Manager) checkLost(ctx context.Context, id, parent string, group cgroup.Paths) error {
	running, err := m.cfg.Running(ctx, id)
	if err != nil {
		return fmt.Errorf("cannot find out which containers run in cgroup %s: %w", parent, err)
	}
	pids, err := group.Pids()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if slices.Contains(running, pid) {
			return fmt.Errorf("cannot remove cgroup %s: process %d of a running container is in it: %w", parent, pid, errs.State)
		}
	}
	if len(pids) > 0 {
		m.cfg.Log.Warn("processes of a pod ran on after the end of its containers; killing them", "sandbox", id, "cgroup", parent, "pids", pids)
	}
	return nil
}

// readOwnCgroup returns "" when there is no record.
func readOwnCgroup(file string) (top, parent string, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("cannot read which cgroup is the sandbox's: %w", err)
	}
	top, parent, ok := strings.Cut(string(data), "\n")
	if !ok || !path.IsAbs(top) || !path.IsAbs(parent) {
		return "", "", nil // killed while it was written: nothing was made yet
	}
	return top, parent, nil
}

// Adopt has the records of MakeParent read, after a restart. ownFiles lists them; the first MakeParent that needs
// them calls it, because a start of berth has more urgent work than to read a file of every pod.
func (m *Manager) Adopt(ownFiles func() ([]string, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adopt = ownFiles
}

// readAdopted reads the records that Adopt was called with. The caller holds m.mu.
func (m *Manager) readAdopted() error {
	if m.adopt == nil {
		return nil
	}
	files, err := m.adopt()
	if err != nil {
		return err
	}
	for _, file := range files {
		top, parent, err := readOwnCgroup(file)
		if err != nil {
			return err
		}
		if parent != "" && top != m.cfg.DefaultParent {
			m.ownParents[parent] = top
		}
	}
	m.adopt = nil
	return nil
}

// ContainerPath is linux.cgroupsPath of a container.
func (m *Manager) ContainerPath(parent, id string) string {
	if m.systemd() {
		return parent + ":" + m.cfg.Prefix + ":" + id
	}
	return path.Join(parent, id)
}

// Paths are a sandbox's cgroup in each hierarchy.
func (m *Manager) Paths(parent string) (cgroup.Paths, error) {
	if m.systemd() {
		var err error
		if parent, err = cgroup.SlicePath(parent); err != nil {
			return nil, err
		}
	}
	return m.tree.Paths(parent), nil
}
