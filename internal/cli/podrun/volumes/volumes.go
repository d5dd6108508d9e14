// Package volumes makes and removes a pod's volumes on this host.
package volumes

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// Make creates the pod's own volumes in dir, which only root can enter, and checks or creates the
// host's.
func Make(dir string, volumes []podyaml.Volume) error {
	if err := MakeOwned(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the pod's directory: %w", err)
	}
	for i := range volumes {
		v := &volumes[i]
		var err error
		switch {
		case v.HostPath != nil:
			err = ensureHostPath(v.HostPath)
		case v.Claim:
			err = makeClaim(v)
		default:
			err = makeVolume(v)
		}
		if err != nil {
			return fmt.Errorf("cannot make volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func makeVolume(v *podyaml.Volume) error {
	if err := os.MkdirAll(v.Path, 0o755); err != nil {
		return err
	}
	switch {
	case v.HugePages > 0:
		if err := sysmount.MountHugePages(v.Path, v.HugePages); err != nil {
			return err
		}
	case v.Memory:
		if err := sysmount.MountMemoryVolume(v.Path, v.SizeLimit); err != nil {
			return err
		}
	}
	for name, file := range v.Files {
		if err := writeFile(filepath.Join(v.Path, name), file, v.GID); err != nil {
			return err
		}
	}
	mode := os.FileMode(0o777)
	switch {
	case v.Mode != nil:
		mode = fileMode(*v.Mode)
	case v.Files != nil:
		mode = 0o755
	}
	if v.GID != nil {
		mode |= os.ModeSetgid
		if err := os.Chown(v.Path, -1, int(*v.GID)); err != nil {
			return err
		}
	}
	return os.Chmod(v.Path, mode) // whatever the umask says
}

// fileMode is Go's of the kernel's bits.
func fileMode(bits int32) os.FileMode {
	mode := os.FileMode(bits).Perm()
	for bit, m := range map[int32]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return mode
}

// writeFile writes a file of a volume; the group that owns the pod's volumes may
// read it.
func writeFile(path string, file source.File, gid *int64) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, file.Data, 0o600); err != nil {
		return err
	}
	mode := os.FileMode(file.Mode).Perm()
	owner, group := -1, -1
	if file.User != nil {
		owner = int(*file.User)
	}
	if gid != nil {
		mode |= 0o440
		group = int(*gid)
	}
	if err := os.Chown(path, owner, group); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// Remove removes a pod's own volumes. Nil when there are none.
func Remove(dir string) error {
	// Do not delete files through a remaining mount.
	if err := sysmount.UnmountBelow(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot remove the pod's volumes: %w", err)
	}
	return nil
}
