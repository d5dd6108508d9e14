package podrun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// makeVolumes makes the pod's own volumes in dir, which nobody but root can enter,
// and sees to the host's.
func makeVolumes(dir string, volumes []podyaml.Volume) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the pod's directory: %w", err)
	}
	for i := range volumes {
		v := &volumes[i]
		var err error
		switch {
		case v.HostPath != nil:
			err = seeToHostPath(v.HostPath)
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
func writeFile(path string, file podyaml.File, gid *int64) error {
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

// seeToHostPath checks or makes what the host brings, as the type says.
func seeToHostPath(host *corev1.HostPathVolumeSource) error {
	info, err := os.Stat(host.Path)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	kind := *host.Type
	switch {
	case missing && (kind == corev1.HostPathUnset || kind == corev1.HostPathDirectoryOrCreate):
		return os.MkdirAll(host.Path, 0o755)
	case missing && kind == corev1.HostPathFileOrCreate:
		return os.WriteFile(host.Path, nil, 0o644)
	case missing:
		return fmt.Errorf("hostPath %s does not exist: %w", host.Path, errs.Invalid)
	}
	is := map[corev1.HostPathType]bool{
		corev1.HostPathUnset:             true,
		corev1.HostPathDirectoryOrCreate: info.IsDir(),
		corev1.HostPathDirectory:         info.IsDir(),
		corev1.HostPathFileOrCreate:      info.Mode().IsRegular(),
		corev1.HostPathFile:              info.Mode().IsRegular(),
		corev1.HostPathSocket:            info.Mode().Type() == os.ModeSocket,
		corev1.HostPathCharDev:           info.Mode().Type() == os.ModeDevice|os.ModeCharDevice,
		corev1.HostPathBlockDev:          info.Mode().Type() == os.ModeDevice,
	}
	if !is[kind] {
		return fmt.Errorf("hostPath %s is no %s: %w", host.Path, kind, errs.Invalid)
	}
	return nil
}

// removeVolumes removes a pod's own volumes. Nil when there are none.
func removeVolumes(dir string) error {
	// What stays mounted must not be emptied through the mount.
	if err := sysmount.UnmountBelow(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot remove the pod's volumes: %w", err)
	}
	return nil
}
