package podcgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/sys/cgroup"
)

// MakePlaceholder makes the placeholder cgroup of a sandbox: an empty cgroup with its id
// below parent, where tools expect the cgroup of a pause container. It is made again when
// pid, the process that stands for the pod, changes. A pid of 0 removes it. MakePlaceholder
// records it in file first; a file in a directory that is gone makes none.
func (m *Manager) MakePlaceholder(id, parent string, pid int, file string) error {
	name := id
	if m.systemd() {
		slice, err := cgroup.SlicePath(parent)
		if err != nil {
			return err
		}
		parent, name = slice, m.cfg.Prefix+"-"+name+".scope"
	}
	placeholder := path.Join(parent, name)
	text := strconv.Itoa(pid) + "\n" + placeholder
	m.placeholders.Lock()
	defer m.placeholders.Unlock()
	if have, err := os.ReadFile(file); err == nil && string(have) == text && m.tree.Exists(placeholder) {
		return nil
	}
	if err := m.removePlaceholder(file); err != nil || pid == 0 || !m.tree.Exists(parent) {
		return err
	}
	err := os.WriteFile(file, []byte(text), 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the sandbox has been removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("cannot record the placeholder cgroup of a sandbox: %w", err)
	}
	return m.tree.Make(placeholder)
}

// RemovePlaceholder removes the placeholder cgroup that file records. Nil when there is
// none.
func (m *Manager) RemovePlaceholder(file string) error {
	m.placeholders.Lock()
	defer m.placeholders.Unlock()
	return m.removePlaceholder(file)
}

func (m *Manager) removePlaceholder(file string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read which placeholder cgroup a sandbox has: %w", err)
	}
	if _, placeholder, ok := strings.Cut(string(data), "\n"); ok && path.IsAbs(placeholder) {
		if err := m.tree.Remove(placeholder); err != nil {
			return err
		}
	}
	return os.Remove(file)
}
