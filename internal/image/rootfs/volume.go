package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// volumesName is the directory of the volumes in that of a root filesystem: they come
// and go with it.
const volumesName = "volumes"

// MakeVolume implements image.Rootfs.
func (m *Manager) MakeVolume(ctx context.Context, spec image.VolumeSpec) (string, error) {
	if err := errors.Join(checkKey(spec.Key), checkKey(spec.Name)); err != nil {
		return "", err
	}
	unlock, err := m.keys.Lock(ctx, spec.Key)
	if err != nil {
		return "", err
	}
	defer unlock()
	u, ok := m.use(spec.Key)
	if !ok {
		return "", fmt.Errorf("cannot make volume %s: root filesystem %s: %w", spec.Name, spec.Key, errs.NotFound)
	}
	dir := filepath.Join(u.written(m.containerDir(spec.Key)), volumesName, spec.Name)
	if u.Storage != "" {
		err = keepVolume(ctx, spec, dir)
	} else if err = makeVolume(ctx, spec, dir); err == nil {
		err = m.withinLimit(m.containerDir(spec.Key))
	}
	if err != nil {
		return "", fmt.Errorf("cannot make volume %s of the root filesystem of %s: %w", spec.Name, spec.Key, errs.OfDisk(err))
	}
	return dir, nil
}

// withinLimit returns an error if there is more in the directory of a root filesystem than its limit. ext4 does not hold berth
// itself to it.
func (m *Manager) withinLimit(dir string) error {
	quota, ok, err := m.counted(dir)
	exceeds := quota.Limit > 0 && quota.Bytes > quota.Limit || quota.InodeLimit > 0 && quota.Inodes > quota.InodeLimit
	if err != nil || !ok || !exceeds {
		return err
	}
	return fmt.Errorf("with it the container has %d bytes in %d files, and may have %d in %d: %w", quota.Bytes, quota.Inodes, quota.Limit, quota.InodeLimit, unix.EDQUOT)
}

// keepVolume uses the existing volume, or makes it. It starts over a copy that was interrupted.
func keepVolume(ctx context.Context, spec image.VolumeSpec, dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := sysfile.RemoveTree(ctx, dir+partSuffix); err != nil {
		return err
	}
	if err := makeVolume(ctx, spec, dir+partSuffix); err != nil {
		return err
	}
	return os.Rename(dir+partSuffix, dir)
}

func makeVolume(ctx context.Context, spec image.VolumeSpec, dir string) error {
	if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("it is there already: %w", errs.Exists)
	}
	if err != nil {
		return err
	}
	if spec.From != "" {
		return sysfile.CopyTree(ctx, spec.From, dir, spec.Progress)
	}
	return errors.Join(os.Chown(dir, spec.UID, spec.GID), os.Chmod(dir, 0o755))
}

// writtenDirs returns the directories that the container of key writes to.
func (m *Manager) writtenDirs(key string) []string {
	u, _ := m.use(key)
	dirs := []string{filepath.Join(u.written(m.containerDir(key)), upperName)}
	volumes := filepath.Join(u.written(m.containerDir(key)), volumesName)
	if _, err := os.Lstat(volumes); err == nil {
		dirs = append(dirs, volumes)
	}
	return dirs
}
