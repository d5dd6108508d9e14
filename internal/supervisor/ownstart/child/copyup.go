package child

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// copyUp copies what is at a mount point into the filesystem that is about to cover it, with owners and
// permissions. The files are the image's: no link is followed, and nothing that blocks is opened.
func copyUp(target, tree int) error {
	from, err := unix.Openat(target, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the directory to copy: %w", err)
	}
	defer unix.Close(from)
	return copyEntries(from, tree)
}

// copyEntries copies what is in a directory.
func copyEntries(from, to int) error {
	buf := make([]byte, 4096)
	for {
		n, err := unix.ReadDirent(from, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if err := copyEntry(from, to, name); err != nil {
				return fmt.Errorf("copy %s: %w", name, err)
			}
		}
	}
}

// copyEntry copies one file, and what is in it if it is a directory.
func copyEntry(from, to int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	mode := uint32(st.Mode)
	var err error
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = copyDirectory(from, to, name)
	case unix.S_IFREG:
		err = copyFile(from, to, name)
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		var n int
		if n, err = unix.Readlinkat(from, name, target); err == nil {
			err = unix.Symlinkat(string(target[:n]), to, name)
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		err = unix.Mknodat(to, name, mode, int(st.Rdev)) //nolint:unconvert // Rdev is shorter on MIPS
	default:
		err = errors.New("it is a FIFO or a socket")
	}
	if err != nil {
		return err
	}
	if err := unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("chown: %w", err)
	}
	if mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	// Nobody else sees the new file system: name is what was made above.
	if err := unix.Fchmodat(to, name, mode&0o7777, 0); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}

func copyDirectory(from, to int, name string) error {
	source, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return err
	}
	copied, err := unix.Openat(to, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(copied)
	return copyEntries(source, copied)
}

func copyFile(from, to int, name string) error {
	source, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	copied, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(copied)
	const turn = 1 << 20
	for {
		n, err := unix.Sendfile(copied, source, nil, turn)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
	}
}
