package sysfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// OpenPath is the flag of a descriptor that stands for a file and does not open it.
const OpenPath = unix.O_PATH

// OpenBeneath opens path, which is relative to dir and may neither leave dir nor
// pass through a symbolic link, whatever is renamed at the same time. A path that
// tries has kind Invalid. flags and perm are those of open(2).
func OpenBeneath(dir *os.File, path string, flags int, perm os.FileMode) (*os.File, error) {
	if !filepath.IsLocal(path) {
		return nil, fmt.Errorf("path %q leads out of %q: %w", path, dir.Name(), errs.Invalid)
	}
	how := unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(perm.Perm())
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), path)), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			// EAGAIN: a rename elsewhere came between; the kernel asks to try again.
			continue
		}
		return nil, BeneathError(dir, path, err)
	}
}

// BeneathError is what OpenBeneath makes of the kernel's error.
func BeneathError(dir *os.File, path string, err error) error {
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("path %q leads out of %q or through a symbolic link: %w", path, dir.Name(), errs.Invalid)
	case errors.Is(err, unix.ENAMETOOLONG):
		return fmt.Errorf("cannot open %q beneath %q: %w: %w", path, dir.Name(), errs.Invalid, err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("cannot open %q beneath %q: the kernel has no openat2: %w", path, dir.Name(), errs.Unsupported)
	}
	return fmt.Errorf("cannot open %q beneath %q: %w", path, dir.Name(), sysfd.Exhausted(err))
}

// FileID identifies a file of this boot while it exists.
type FileID struct{ Dev, Ino uint64 }

// FileState is what fstat says about an open file.
type FileState struct {
	ID   FileID
	Size int64
	// Links is 0 for a file that was deleted.
	Links   uint64
	Regular bool
}

// StatFile returns the state of an open file. Unlike File.Stat it allocates
// nothing.
func StatFile(f *os.File) (FileState, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return FileState{}, fmt.Errorf("cannot stat %s: %w", f.Name(), err)
	}
	return fileState(&st), nil
}

// FindFile returns the name in dir of the file with the given id, which was
// renamed within dir. NotFound if there is none.
func FindFile(dir *os.File, id FileID) (string, error) {
	again, err := OpenBeneath(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer again.Close()
	names, err := again.Readdirnames(-1)
	if err != nil {
		return "", fmt.Errorf("cannot list %s: %w", dir.Name(), err)
	}
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(int(again.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && fileState(&st).ID == id {
			return name, nil
		}
	}
	return "", fmt.Errorf("file with inode %d in %s: %w", id.Ino, dir.Name(), errs.NotFound)
}

func fileState(st *unix.Stat_t) FileState {
	return FileState{
		ID:      FileID{Dev: uint64(st.Dev), Ino: st.Ino}, //nolint:unconvert // 32 bits on some architectures
		Size:    st.Size,
		Links:   uint64(st.Nlink), //nolint:unconvert // likewise
		Regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
	}
}
