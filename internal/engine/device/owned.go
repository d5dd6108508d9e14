package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Owned returns the devices with sources that have the owners which the devices are to have. It
// makes a node in dir for each device whose source has another owner. It is for engines that copy
// the owner of the source. dir need not exist; nobody opens the nodes, so it can be on a file system
// without devices.
func Owned(dir string, devices []ocispec.Device) ([]ocispec.Device, error) {
	owned := make([]ocispec.Device, 0, len(devices))
	for i, d := range devices {
		node, ok, err := sysfile.StatDevice(d.Source)
		if err != nil {
			return nil, fmt.Errorf("cannot read the device %s: %w: %w", d.Source, err, errs.Invalid)
		}
		if !ok {
			return nil, fmt.Errorf("%s is not a device any more: %w", d.Source, errs.Invalid)
		}
		if node.UID != d.UID || node.GID != d.GID {
			if d.Source, err = makeNode(filepath.Join(dir, strconv.Itoa(i)), d); err != nil {
				return nil, err
			}
		}
		owned = append(owned, d)
	}
	return owned, nil
}

func makeNode(path string, d ocispec.Device) (string, error) {
	kind := uint32(unix.S_IFCHR)
	if d.Type == "b" {
		kind = unix.S_IFBLK
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = unix.Mknod(path, kind|d.Mode&0o777, int(unix.Mkdev(uint32(d.Major), uint32(d.Minor)))) //nolint:gosec // as the host has them
	}
	if err == nil {
		err = os.Chmod(path, os.FileMode(d.Mode&0o777)) // without the umask
	}
	if err == nil {
		err = os.Chown(path, int(d.UID), int(d.GID))
	}
	if err != nil {
		return "", fmt.Errorf("cannot make a node of the device %s with its owner: %w", d.Source, err)
	}
	return path, nil
}
