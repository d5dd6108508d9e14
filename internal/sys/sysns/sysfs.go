package sysns

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// WritableSysfs makes the sysfs of the calling thread's network namespace writable for mounts that come
// later. The first mount of it in a namespace decides otherwise: a read-only one makes all later ones
// read-only. Mounts that are read-only themselves stay so.
func WritableSysfs() error {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot open the sysfs of a network namespace: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("cannot open the sysfs of a network namespace: %w", err)
	}
	detached, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open the sysfs of a network namespace: %w", err)
	}
	defer unix.Close(detached)
	change, err := unix.Fspick(detached, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("cannot change the sysfs of a network namespace: %w", err)
	}
	defer unix.Close(change)
	err = unix.FsconfigSetFlag(change, "rw")
	if err == nil {
		err = unix.FsconfigReconfigure(change)
	}
	if err != nil {
		return fmt.Errorf("cannot make the sysfs of a network namespace writable: %w", err)
	}
	return nil
}
