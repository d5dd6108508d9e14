package rootfs

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/berthrun/berth/internal/sys/sysmount"
)

// use is the record of a root filesystem.
type use struct {
	Image string `json:"image"`
	Chain string `json:"chain"`
	// Storage is where upper, work and volumes are in place of the directory itself; see
	// storage.go.
	Storage string `json:"storage,omitempty"`

	lower []string
}

// RecordedChains are the topmost snapshots below the root filesystems that have a record,
// one for each.
func (p Paths) RecordedChains() ([]string, error) {
	records, err := filepath.Glob(filepath.Join(p.ContainersDir(), "*", recordName))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, path := range records {
		var u use
		data, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(data, &u) == nil && u.Chain != "" {
			all = append(all, u.Chain)
		}
	}
	return all, nil
}

// Load reads which root filesystems there are, and empties the pool of those that are not
// yet. Call it once, before the manager is used.
func (m *Manager) Load(ctx context.Context) error {
	entries, err := os.ReadDir(m.ContainersDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		var u use
		data, err := os.ReadFile(filepath.Join(m.containerDir(entry.Name()), recordName))
		if err == nil {
			err = json.Unmarshal(data, &u)
		}
		if err != nil {
			// Only a loss of power cuts it short, and no container survives that.
			m.log.Warn("cannot read the record of a root filesystem", "key", entry.Name(), "error", err)
		}
		if u.lower, err = m.images.RestoreLayers(ctx, u.Chain); err != nil {
			m.log.Warn("cannot find the layers of a root filesystem", "key", entry.Name(), "error", err)
		}
		m.uses[entry.Name()] = u
	}
	return m.discardPool()
}

// discardPool empties the pool of a process that has ended.
func (m *Manager) discardPool() error {
	pool, err := os.ReadDir(m.PoolDir())
	if err != nil {
		return err
	}
	for _, entry := range pool {
		dir := filepath.Join(m.PoolDir(), entry.Name())
		// The process may have ended while it tried which mounts the kernel supports: see
		// CanMount and probeMapped.
		for _, name := range []string{mappedRootfs, mappedLayers} {
			if err := sysmount.Detach(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		if err := m.discard(dir); err != nil {
			return err
		}
	}
	return nil
}

// DropMounts removes mount points whose directory is gone: a release was cut
// short.
func (m *Manager) DropMounts() error {
	var errList []error
	for _, dir := range []string{m.MountsDir(), m.MappedDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if _, ok := m.use(entry.Name()); !ok {
				errList = append(errList, m.release(entry.Name()))
			}
		}
	}
	return errors.Join(errList...)
}

// Users returns the keys of root filesystems by the topmost snapshot below them.
func (m *Manager) Users() map[string][]string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	users := map[string][]string{}
	for key, u := range m.uses {
		users[u.Chain] = append(users[u.Chain], key)
	}
	for _, keys := range users {
		slices.Sort(keys)
	}
	return users
}
