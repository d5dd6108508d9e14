package rootfs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// A root filesystem is a copy of its layers where the store mounts no overlays. The upper directory then has the whole tree,
// and the root filesystem is a mount of it. A copy is made in a directory of the pool, which a rename makes that of the root
// filesystem: a copy that was cut short is never used, and the next start removes it.
//
// Mounted images cannot be written to, so those of one image share a copy, Root/copies/<name>, which goes with the last of
// them. It does not outlive a boot: nothing syncs it to the disk.

// maxCopies bounds the copies that are made at a time: each holds the names of its directories in memory.
const maxCopies = 4

// copied is the record of a root filesystem that is a copy.
type copied struct {
	// Bytes and Inodes are what was in its directory when the copy was made. What is more, the container has written.
	Bytes  int64 `json:"bytes,omitempty"`
	Inodes int64 `json:"inodes,omitempty"`
	// Shared is the name of a copy that it shares, "" for its own.
	Shared string `json:"shared,omitempty"`
}

// written is what a container has written into a copy of whose directory used is the usage.
func (c *copied) written(used sysfile.Usage) sysfile.Usage {
	if c == nil {
		return used
	}
	return sysfile.Usage{Bytes: max(0, used.Bytes-c.Bytes), Inodes: max(0, used.Inodes-c.Inodes)}
}

// fill makes the copy for a root filesystem whose directory is to be dir.
func (m *Manager) fill(ctx context.Context, spec image.RootfsSpec, u use, dir string) (*copied, error) {
	switch {
	case spec.ReadOnly:
		name, err := m.sharedName(u, spec.MountLabel)
		return &copied{Shared: name}, err
	case u.Storage != "":
		return m.openStorage(ctx, spec, u, true)
	}
	if err := m.copyLayers(ctx, spec, u, filepath.Join(dir, upperName)); err != nil {
		return nil, err
	}
	used, err := m.usageOf(ctx, dir)
	return &copied{Bytes: used.Bytes, Inodes: used.Inodes}, err
}

// copyLayers copies the layers of u onto the empty directory to, when few others do.
func (m *Manager) copyLayers(ctx context.Context, spec image.RootfsSpec, u use, to string) error {
	if len(u.lower) == 0 {
		return u.layersGone()
	}
	layers := make([]string, len(u.lower))
	for i, lower := range u.lower {
		layers[i] = filepath.Join(m.layersDir, lower)
	}
	select {
	case m.copying <- struct{}{}:
		defer func() { <-m.copying }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := sysfile.CopyLayers(ctx, layers, to, sysfile.LayersCopy{Label: spec.MountLabel, Progress: spec.Progress})
	if err == nil {
		err = m.copyRoot(u, to)
	}
	if err != nil {
		return fmt.Errorf("cannot copy the layers of image %s: %w", u.Image, err)
	}
	return nil
}

// usageOf returns what is in a directory that has a copy, and nothing else yet.
func (m *Manager) usageOf(ctx context.Context, dir string) (sysfile.Usage, error) {
	if quota, counted, err := m.counted(dir); err != nil || counted {
		return sysfile.Usage{Bytes: quota.Bytes, Inodes: quota.Inodes}, err
	}
	return syncedUsage(ctx, filepath.Join(dir, upperName))
}

// syncedUsage writes a copy to the disk, and returns what is in it. Some file systems (ZFS, NFS) know only then how many
// blocks a file has.
func syncedUsage(ctx context.Context, dir string) (sysfile.Usage, error) {
	if err := sysfile.SyncFS(dir); err != nil {
		return sysfile.Usage{}, err
	}
	return sysfile.UsageOf(ctx, nil, dir)
}

// mountCopy mounts a copy.
func (m *Manager) mountCopy(ctx context.Context, spec image.RootfsSpec, u use, target string) error {
	source := filepath.Join(u.written(m.containerDir(spec.Key)), upperName)
	if u.Copied.Shared != "" {
		source = filepath.Join(m.sharedDir(u.Copied.Shared), upperName)
		if err := m.makeShared(ctx, spec, u); err != nil {
			return err
		}
	}
	if spec.Map != nil {
		if err := m.makeMapped(spec); err != nil {
			return err
		}
		return sysmount.BindRoot(source, target, spec.Map.UserNS, spec.ReadOnly)
	}
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return sysmount.BindRoot(source, target, "", spec.ReadOnly)
}

// sharedName is the name of a shared copy of layers, whose files have an SELinux label. Other directories of the layers, as after
// the repair of a damaged layer, have another copy.
func (m *Manager) sharedName(u use, label string) (string, error) {
	of := label
	for _, lower := range u.lower {
		var st unix.Stat_t
		path := filepath.Join(m.layersDir, lower)
		if err := unix.Stat(path, &st); err != nil {
			return "", &os.PathError{Op: "stat", Path: path, Err: err}
		}
		of += fmt.Sprintf("\x00%d", st.Ino)
	}
	return digest.Digest(u.Chain).Encoded() + fmt.Sprintf("-%x", sha256.Sum256([]byte(of)))[:13], nil
}

// sharedKey returns the key of a shared copy's lock. No root filesystem has such a key.
func sharedKey(name string) string { return "copy " + name }

// makeShared makes the copy that u shares, if it is not there. The record of u is: dropShared finds it.
func (m *Manager) makeShared(ctx context.Context, spec image.RootfsSpec, u use) (err error) {
	unlock, err := m.keys.Lock(ctx, sharedKey(u.Copied.Shared))
	if err != nil {
		return err
	}
	defer unlock()
	to := m.sharedDir(u.Copied.Shared)
	if _, err := os.Lstat(to); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	dir, err := m.pool.take(m)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.discardDir(dir))
		}
	}()
	if err := m.copyLayers(ctx, spec, u, filepath.Join(dir, upperName)); err != nil {
		return err
	}
	return os.Rename(dir, to)
}

// dropShared removes a shared copy that no root filesystem shares any more, in the background: another one may be making it.
func (m *Manager) dropShared(name string) {
	m.background.Go(func(ctx context.Context) {
		unlock, err := m.keys.Lock(ctx, sharedKey(name))
		if err != nil {
			return // the next start removes it
		}
		defer unlock()
		if m.shares(name) {
			return
		}
		if err := m.discardDir(m.sharedDir(name)); err != nil {
			m.log.Warn("cannot remove the copy of an image that no pod mounts any more", "directory", m.sharedDir(name), "error", err)
		}
	})
}

// shares reports whether a root filesystem shares a copy.
func (m *Manager) shares(name string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, u := range m.uses {
		if u.Copied != nil && u.Copied.Shared == name {
			return true
		}
	}
	return false
}

// loadShared removes the shared copies that are mounted nowhere: those of another boot, and those whose release was cut short.
// Where a root filesystem shares one still, the copy is made again when that is mounted again.
func (m *Manager) loadShared() error {
	mounted := map[string]bool{}
	for key, u := range m.uses {
		if u.Copied == nil || u.Copied.Shared == "" || mounted[u.Copied.Shared] {
			continue
		}
		for _, target := range []string{m.mountPath(key), m.mappedPath(key)} {
			is, err := sysmount.IsMountPoint(target)
			if err != nil {
				return err
			}
			mounted[u.Copied.Shared] = mounted[u.Copied.Shared] || is
		}
	}
	entries, err := os.ReadDir(m.CopiesDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !mounted[entry.Name()] {
			if err := m.discardDir(m.sharedDir(entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// layersGone is the error of a root filesystem whose layers are not there.
func (u use) layersGone() error {
	return fmt.Errorf("the layers of image %s are gone: %w", u.Image, errs.NotFound)
}
