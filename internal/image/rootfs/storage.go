package rootfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// A storage is a directory of the caller that keeps what a container writes:
//
//	upper, work   as in the directory of a root filesystem
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

// openStorage makes the storage, or looks whether it is of these layers.
func (u use) openStorage() error {
	if u.Storage == "" {
		return nil
	}
	file := filepath.Join(u.Storage, recordName)
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return u.makeStorage(file)
	}
	var of use
	if err == nil {
		err = json.Unmarshal(data, &of)
	}
	if err != nil {
		return fmt.Errorf("cannot read which image the storage %s is of: %w", u.Storage, err)
	}
	if of.Chain != u.Chain {
		return fmt.Errorf("the storage %s is of image %s, and what was written over that cannot be seen over image %s; use another directory, or remove it: %w", u.Storage, of.Image, u.Image, errs.State)
	}
	return nil
}

// makeStorage makes the directories, and last the record. A storage without a record is made
// again: no container can have written to it.
func (u use) makeStorage(file string) error {
	for name, mode := range map[string]os.FileMode{"": 0o700, upperName: 0o755, workName: 0o700, volumesName: 0o700} {
		dir := filepath.Join(u.Storage, name)
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("cannot make the storage: %w", err)
		}
		if err := os.Chmod(dir, mode); err != nil { // regardless of the umask
			return fmt.Errorf("cannot make the storage: %w", err)
		}
	}
	on, err := sysmount.OnOverlay(u.Storage)
	if err == nil && on {
		err = fmt.Errorf("the storage %s is on an overlay, over which the kernel mounts no other; use a directory of a disk: %w", u.Storage, errs.Unsupported)
	}
	if err != nil {
		return err
	}
	record, err := json.Marshal(use{Image: u.Image, Chain: u.Chain})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+partSuffix, record, 0o600); err != nil {
		return fmt.Errorf("cannot make the storage: %w", err)
	}
	return os.Rename(file+partSuffix, file)
}
