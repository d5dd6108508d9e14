package rootfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// A storage is a directory of the caller that keeps what a container writes:
//
//	upper, work   as in the directory of a root filesystem; the copy of the layers, if it is one
//	upper.part    a copy that is not whole yet; with a record it is whole, and becomes upper
//	volumes       one directory each; one that is not whole yet has partSuffix
//	image         which layers are below
//
// One root filesystem at a time uses it. The caller that named it removes it. Without the inode
// index an upper directory may be mounted again over the same layers wherever they are by then,
// even after the image was removed and imported again.

// partSuffix ends the name of a volume that is being filled.
const partSuffix = ".part"

// written is the directory with what the root filesystem in dir is written to.
func (u use) written(dir string) string {
	if u.Storage != "" {
		return u.Storage
	}
	return dir
}

// openStorage makes the storage, with a copy of the layers or for an overlay, or looks whether it is of these layers. It returns
// what a copy in it took at first, nil if it has none.
func (m *Manager) openStorage(ctx context.Context, spec image.RootfsSpec, u use, copies bool) (*copied, error) {
	file := filepath.Join(u.Storage, recordName)
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return m.makeStorage(ctx, spec, u, copies)
	}
	var of use
	if err == nil {
		err = json.Unmarshal(data, &of)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read which image the storage %s is of: %w", u.Storage, err)
	}
	if of.Chain != u.Chain {
		return nil, fmt.Errorf("the storage %s is of image %s, and what was written over that cannot be seen over image %s; use another directory, or remove it: %w", u.Storage, of.Image, u.Image, errs.State)
	}
	if have, want := of.Copied != nil, copies; have != want {
		kinds := map[bool]string{true: "a copy of the image", false: "the changes of an overlay"}
		return nil, fmt.Errorf("the storage %s has %s, and root filesystems are made with %s now (image.snapshotter); use another directory, or remove it: %w", u.Storage, kinds[have], kinds[want], errs.State)
	}
	return of.Copied, u.finishCopy(of)
}

// makeStorage makes the directories, and last the record, so that no loss of power takes it from what a container has written.
func (m *Manager) makeStorage(ctx context.Context, spec image.RootfsSpec, u use, copies bool) (*copied, error) {
	if err := u.makeDirs(); err != nil {
		return nil, fmt.Errorf("cannot make the storage: %w", err)
	}
	record := use{Image: u.Image, Chain: u.Chain}
	if copies {
		var err error
		if record.Copied, err = m.copyToStorage(ctx, spec, u); err != nil {
			return nil, err
		}
	} else if on, err := sysmount.OnOverlay(u.Storage); err != nil {
		return nil, err
	} else if on {
		return nil, fmt.Errorf("the storage %s is on an overlay, over which the kernel mounts no other; use a directory of a disk: %w", u.Storage, errs.Unsupported)
	} else if err := m.describeRoot(spec, u, filepath.Join(u.Storage, upperName)); err != nil {
		return nil, err
	}
	data, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(u.Storage, recordName)
	if err := sysfile.ReplaceSynced(file, data); err != nil {
		return nil, fmt.Errorf("cannot make the storage: %w", err)
	}
	return record.Copied, u.finishCopy(record)
}

// finishCopy makes a copy that is on disk, and whole by the record, the upper directory.
func (u use) finishCopy(record use) error {
	if record.Copied == nil {
		return nil
	}
	upper := filepath.Join(u.Storage, upperName)
	// Unlike that of package os it replaces an empty directory.
	if err := unix.Rename(upper+partSuffix, upper); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rename " + upper + partSuffix + " to", Path: upper, Err: err}
	}
	return nil
}

// makeDirs makes the directories of the storage.
func (u use) makeDirs() error {
	for name, mode := range map[string]os.FileMode{"": 0o700, upperName: 0o755, workName: 0o700, volumesName: 0o700} {
		dir := filepath.Join(u.Storage, name)
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil { // regardless of the umask
			return err
		}
	}
	return nil
}

// copyToStorage copies the layers beside the upper directory of a storage without a record, in place of what a copy that was
// cut short has left. The copy is on disk before the record says that it is whole: a storage outlives a boot. Kind State if
// the upper directory has files: they may be a container's.
func (m *Manager) copyToStorage(ctx context.Context, spec image.RootfsSpec, u use) (*copied, error) {
	upper := filepath.Join(u.Storage, upperName)
	if left, err := os.ReadDir(upper); err != nil {
		return nil, fmt.Errorf("cannot make the storage: %w", err)
	} else if len(left) > 0 {
		return nil, fmt.Errorf("the storage %s has files in %s, and no record of their image (%s); use another directory, or remove it: %w", u.Storage, upperName, recordName, errs.State)
	}
	part := upper + partSuffix
	err := sysfile.RemoveTree(ctx, part)
	if err == nil {
		err = errors.Join(os.Mkdir(part, 0o700), os.Chmod(part, 0o755)) //nolint:gosec // as makeDirs
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the storage: %w", err)
	}
	if err := m.copyLayers(ctx, spec, u, part); err != nil {
		return nil, err
	}
	used, err := syncedUsage(ctx, part)
	return &copied{Bytes: used.Bytes, Inodes: used.Inodes}, err
}
