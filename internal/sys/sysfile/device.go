package sysfile

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// DeviceNode is what a device node is.
type DeviceNode struct {
	// Block is false for a character device.
	Block        bool
	Major, Minor uint32
	// Mode is the permission bits.
	Mode     uint32
	UID, GID uint32
}

// StatDevice looks at path, following links; ok is false when it is no device.
func StatDevice(path string) (node DeviceNode, ok bool, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return DeviceNode{}, false, fmt.Errorf("cannot look at the device: %w", &os.PathError{Op: "stat", Path: path, Err: err})
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFBLK && kind != unix.S_IFCHR {
		return DeviceNode{}, false, nil
	}
	return DeviceNode{
		Block: kind == unix.S_IFBLK,
		Major: unix.Major(uint64(st.Rdev)), Minor: unix.Minor(uint64(st.Rdev)),
		Mode: st.Mode & 0o777, UID: st.Uid, GID: st.Gid,
	}, true, nil
}
