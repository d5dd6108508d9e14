package rootfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// use is the record of a root filesystem.
type use struct {
	Image string `json:"image"`
	Chain string `json:"chain"`
	// Storage is where upper, work and volumes are in place of the directory itself; see
	// storage.go.
	Storage string `json:"storage,omitempty"`
	// Proxy is the snapshotter that has the layers, and what is written over them, "" for this store; see proxy.go.
	Proxy string `json:"proxy,omitempty"`
	// Copied is set if it is a copy of the layers, and no overlay; see copy.go.
	Copied *copied `json:"copied,omitempty"`

	// lower are the directories of the layers, topmost first, below lowerRoot, "" for Config.LayersDir.
	lower     []string
	lowerRoot string
}

// RecordedChains are the topmost snapshots of this store below the root filesystems that have a
// record, one for each.
func (p Paths) RecordedChains() ([]string, error) {
	records, err := filepath.Glob(filepath.Join(p.ContainersDir(), "*", recordName))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, path := range records {
		var u use
		data, err := database.ReadOwn(path)
		if err == nil && json.Unmarshal(data, &u) == nil && u.Chain != "" && u.Proxy == "" {
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
		u, err := m.readUse(entry.Name())
		if err != nil {
			m.log.Warn("cannot read the record of a root filesystem", "key", entry.Name(), "error", err)
		}
		if u.Proxy != "" {
			m.uses[entry.Name()] = u
			if own := m.proxies.Own(u.Proxy); own != nil {
				if err := own.Restore(entry.Name(), u.Chain); err != nil {
					m.log.Warn("cannot find the layers of a root filesystem", "key", entry.Name(), "snapshotter", u.Proxy, "error", err)
				}
			}
			continue // it keeps the layers by itself
		}
		// A copy stands without its layers.
		u.lower, err = m.images.RestoreLayers(ctx, u.Chain)
		// A removal that was cut short leaves layers that no running container uses.
		if errors.Is(err, dbcheck.ErrDamaged) && u.Copied == nil && m.mountedUse(entry.Name()).Chain != "" {
			return fmt.Errorf("root filesystem %s: %w", entry.Name(), err)
		}
		if err != nil && u.Copied == nil {
			m.log.Warn("cannot find the layers of a root filesystem", "key", entry.Name(), "error", err)
		}
		m.uses[entry.Name()] = u
	}
	return errors.Join(m.loadShared(), m.loadReplaced(), m.discardPool())
}

// readUse reads the record of a root filesystem. If that is damaged while a container runs, its mount
// still has the layers; the record is written again.
func (m *Manager) readUse(key string) (use, error) {
	file := filepath.Join(m.containerDir(key), recordName)
	data, err := database.ReadOwn(file)
	if err == nil {
		var u use
		if err = json.Unmarshal(data, &u); err == nil && digest.Digest(u.Chain).Validate() == nil {
			return u, nil
		}
		err = errors.Join(err, fmt.Errorf("%s has no chain of layers: %w", file, errs.Invalid))
	}
	u := m.mountedUse(key)
	if u.Chain == "" {
		return u, err
	}
	record, writeErr := json.Marshal(u)
	if writeErr == nil {
		writeErr = errors.Join(os.RemoveAll(file), os.WriteFile(file, record, 0o600))
	}
	return u, errors.Join(fmt.Errorf("%w; its layers are known from its mount", err), writeErr)
}

// mountedUse finds what is below a mounted root filesystem: the topmost layer of an overlay, or a copy. It is empty if
// it is not mounted.
func (m *Manager) mountedUse(key string) use {
	for _, target := range []string{m.mountPath(key), m.mappedPath(key)} {
		mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(target))
		if err != nil || len(mounts) == 0 {
			continue
		}
		if root := mounts[0].Root; root != "/" {
			dir := filepath.Dir(root) // it ends with upperName
			if filepath.Base(filepath.Dir(dir)) == filepath.Base(m.CopiesDir()) {
				return use{Copied: &copied{Shared: filepath.Base(dir)}}
			}
			return use{Copied: &copied{}}
		}
		for option := range strings.SplitSeq(mounts[0].VFSOptions, ",") {
			lower, ok := strings.CutPrefix(option, "lowerdir=")
			if !ok {
				continue
			}
			top, _, _ := strings.Cut(lower, ":")
			if chain := m.proxies.OwnChain(top); chain != "" {
				return use{Chain: chain, Proxy: image.ErofsSnapshotter}
			}
			// The path begins elsewhere where ids are mapped.
			label, err := database.ReadLayerLabel(filepath.Join(m.layersDir, filepath.Base(filepath.Dir(top))))
			if err == nil {
				return use{Chain: label.Chain}
			}
		}
	}
	return use{}
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
			if !entry.IsDir() {
				continue // it leads elsewhere
			}
			if err := sysmount.Detach(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		if err := m.discardDir(dir); err != nil {
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
