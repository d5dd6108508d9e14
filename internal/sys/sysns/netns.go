package sysns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// NewNetNS makes a network namespace with its loopback up and pins it at path,
// whose directory exists (see EnsureNetNSDir). Kind Exists when path is taken.
// A failed call leaves nothing; a killed one may leave what RemoveNetNS removes.
func NewNetNS(path string) error {
	ns, err := OpenNewNetNS()
	if err != nil {
		return err
	}
	defer ns.Close()
	return PinNetNS(ns, path)
}

// OpenNewNetNS makes a network namespace with its loopback up that lives as long
// as the returned descriptor (or a pin of it). A pool of warm namespaces is a
// list of these: nothing is left of it when its process dies.
func OpenNewNetNS() (*os.File, error) {
	var ns *os.File
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot make a network namespace: %w", err)
		}
		if err := LoopbackUp(); err != nil {
			return fmt.Errorf("cannot bring up the loopback of a new network namespace: %w", err)
		}
		f, err := os.Open(threadNetNS)
		if err != nil {
			return fmt.Errorf("cannot open a new network namespace: %w", err)
		}
		ns = f
		return nil
	})
	return ns, err
}

// PinNetNS keeps the namespace ns alive and reachable at path. Kind Exists when
// path is taken.
func PinNetNS(ns *os.File, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_CLOEXEC, 0o444)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot pin a network namespace at %s: %w", path, errs.Exists)
	}
	if err != nil {
		return fmt.Errorf("cannot pin a network namespace: %w", err)
	}
	f.Close()
	source := fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("cannot pin a network namespace at %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// RemoveNetNS removes the pin at path, mounted or not. Nil when there is none.
// The namespace goes when nothing else uses it.
func RemoveNetNS(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("cannot unpin the network namespace at %s: %w", path, err)
		}
	}
	if err := errs.IgnoreNotExist(os.Remove(path)); err != nil {
		return fmt.Errorf("cannot remove the pin of a network namespace: %w", err)
	}
	return nil
}

// InNetNS runs fn on a thread that is in the network namespace pinned at path.
// What fn opens stays in that namespace; goroutines that it starts do not.
// Kind NotFound when no namespace is pinned there.
func InNetNS(path string, fn func() error) error {
	ns, err := OpenNetNS(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return InNetNSFile(ns, fn)
}

// InNetNSFile is InNetNS for a namespace that is open already.
func InNetNSFile(ns *os.File, fn func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot enter the network namespace %s: %w", ns.Name(), err)
		}
		return fn()
	})
}

// ThreadNetNS opens the network namespace of the calling thread. own is true when the other threads
// of the process are in it, too, so that nothing need be entered.
func ThreadNetNS() (ns *os.File, own bool, err error) {
	if ns, err = OpenThreadNetNS(); err != nil {
		return nil, false, err
	}
	here, errHere := os.Stat(threadNetNS)
	main, errMain := os.Stat("/proc/self/ns/net")
	if err := errors.Join(errHere, errMain); err != nil {
		ns.Close()
		return nil, false, fmt.Errorf("cannot compare network namespaces: %w", err)
	}
	return ns, os.SameFile(here, main), nil
}

// OpenThreadNetNS opens the network namespace of the calling thread.
func OpenThreadNetNS() (*os.File, error) {
	ns, err := os.Open(threadNetNS)
	if err != nil {
		return nil, fmt.Errorf("cannot open the thread's network namespace: %w", err)
	}
	return ns, nil
}

// OpenNetNS opens the namespace pinned at path. Kind NotFound when there is no
// file, or one with no namespace on it (a pin of before a reboot).
func OpenNetNS(path string) (*os.File, error) {
	ns, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("network namespace %s: %w", path, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		ns.Close()
		return nil, fmt.Errorf("no network namespace is pinned at %s: %w", path, errs.NotFound)
	}
	return ns, nil
}

// EnsureNetNSDir makes dir if need be, and makes mounts in it propagate, so that
// pins are seen in every mount namespace that has the directory and removals reach
// them too. To that end dir is mounted on itself, unless others have pinned
// namespaces there already: those would be covered, and a process that
// unmounts the copy on top could not remove the file below. Then the mount that they lie on is shared.
func EnsureNetNSDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make the directory of network namespaces: %w", err)
	}
	err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		var holder string
		if holder, err = pinsOf(dir); err != nil {
			return err
		}
		if holder != "" {
			return share(holder, 0)
		}
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("cannot mount the directory of network namespaces %s on itself: %w", dir, err)
		}
		return share(dir, unix.MS_REC)
	}
	if err != nil {
		return fmt.Errorf("cannot share the mounts below %s: %w", filepath.Clean(dir), err)
	}
	return nil
}

func share(dir string, recursive uintptr) error {
	if err := unix.Mount("", dir, "", unix.MS_SHARED|recursive, ""); err != nil {
		return fmt.Errorf("cannot share the mounts below %s: %w", filepath.Clean(dir), err)
	}
	return nil
}

// pinsOf returns the mount point that dir lies on if something is mounted below dir,
// else "".
func pinsOf(dir string) (holder string, err error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("cannot resolve %s: %w", dir, err)
	}
	below, err := mountinfo.GetMounts(visible(mountinfo.PrefixFilter(real)))
	if err != nil {
		return "", fmt.Errorf("cannot read the mount table: %w", err)
	}
	if len(below) == 0 {
		return "", nil
	}
	above, err := mountinfo.GetMounts(visible(mountinfo.ParentsFilter(real)))
	if err != nil {
		return "", fmt.Errorf("cannot read the mount table: %w", err)
	}
	for _, mount := range above {
		if len(mount.Mountpoint) > len(holder) {
			holder = mount.Mountpoint
		}
	}
	return holder, nil
}

// visible lets a filter pass no mounts that later ones cover, at their own mount point or above it: the
// mount table has them, and no path leads to them.
func visible(filter mountinfo.FilterFunc) mountinfo.FilterFunc {
	return func(mount *mountinfo.Info) (skip, stop bool) {
		skip, stop = filter(mount)
		if !skip {
			skip = isCovered(mount)
		}
		return skip, stop
	}
}

// isCovered reports whether a path leads to another mount than the one that the mount table has there.
// False if this kernel does not say (before 5.8).
func isCovered(mount *mountinfo.Info) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, mount.Mountpoint, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return true
	}
	return err == nil && st.Mask&unix.STATX_MNT_ID != 0 && st.Mnt_id != uint64(mount.ID) //nolint:gosec // no less than 0
}

// threadNetNS is the network namespace of the calling thread, which may differ
// from its process's.
const threadNetNS = "/proc/thread-self/ns/net"

// onOwnThread runs fn on a thread whose network namespace fn may change. The
// thread goes back to Go's pool only once it is in its first namespace again,
// else it ends.
func onOwnThread(fn func() error) (err error) {
	done := make(chan struct{})
	err = errors.New("the function on its own thread did not return")
	GoOnThread(func() {
		defer close(done)
		home, openErr := os.Open(threadNetNS)
		if openErr != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("cannot open the thread's network namespace: %w", openErr)
			return
		}
		defer home.Close()
		err = fn()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	})
	<-done
	return err
}

// LoopbackUp brings up the loopback of the calling thread's network namespace.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
