package sysns

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// WritableSysfs makes the sysfs of the calling thread's network namespace writable for mounts that come
// later. The first mount of it in a namespace decides otherwise: a read-only one makes all later ones
// read-only. Mounts that are read-only themselves stay so.
func WritableSysfs() error {
	err := reconfigureSysfs()
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.2
		return remountSysfs()
	}
	return err
}

// reconfigureSysfs mounts the sysfs of the network namespace nowhere.
func reconfigureSysfs() error {
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

// remountSysfs does the same with mounts in a mount namespace of a thread, which ends with it.
func remountSysfs() error {
	ns, _, err := ThreadNetNS()
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	GoOnThread(func() { // and is not unlocked: the thread ends
		done <- func() error {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("cannot enter the network namespace %s: %w", ns.Name(), err)
			}
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("cannot make a mount namespace: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("cannot make the mounts of a thread its own: %w", err)
			}
			if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
				return fmt.Errorf("cannot mount the sysfs of a network namespace: %w", err)
			}
			if err := unix.Mount("", "/sys", "", unix.MS_REMOUNT, ""); err != nil {
				return fmt.Errorf("cannot make the sysfs of a network namespace writable: %w", err)
			}
			return nil
		}()
	})
	return <-done
}
