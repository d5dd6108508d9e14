package sysfd

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Owner is the user and group that own a pipe inside of a container.
type Owner struct{ UID, GID int }

// OutputPipe makes an anonymous pipe for stdout or stderr of a container that
// runs as owner.
//
// container is open for reading and writing: it is the container's descriptor,
// which gets neither SIGPIPE nor an end of file when all of berth's processes are gone.
// reader only reads. The content goes with the last descriptor of either kind,
// so a process that must not lose it keeps a duplicate. Neither end is in non-blocking
// mode: the container's could not cope with it, and the reader's must not be
// watched by Go's own poller.
func OutputPipe(owner Owner) (reader, container *os.File, err error) {
	reader, writer, err := ownedPipe(owner)
	if err != nil {
		return nil, nil, err
	}
	defer writer.Close()
	container, err = ReopenPipe(reader, os.O_RDWR)
	if err != nil {
		reader.Close()
		return nil, nil, err
	}
	return reader, container, nil
}

// InputPipe makes an anonymous pipe for stdin of a container that runs as owner.
// Its ends have one direction each, since a read-write end would never see the
// end of the input.
func InputPipe(owner Owner) (container, writer *os.File, err error) {
	return ownedPipe(owner)
}

func ownedPipe(owner Owner) (reader, writer *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("cannot make a pipe: %w", Exhausted(err))
	}
	reader = os.NewFile(uintptr(fds[0]), "|0")
	writer = os.NewFile(uintptr(fds[1]), "|1")
	// A process of the container that opens /dev/stdout needs the permission.
	// Both ends have one inode.
	if owner != (Owner{}) {
		if err := unix.Fchown(fds[0], owner.UID, owner.GID); err != nil {
			reader.Close()
			writer.Close()
			return nil, nil, fmt.Errorf("cannot give a pipe to uid %d, gid %d: %w", owner.UID, owner.GID, err)
		}
	}
	return reader, writer, nil
}

// ReopenPipe opens the pipe behind f once more, with an open file description of
// its own. access is os.O_RDONLY, os.O_WRONLY or os.O_RDWR.
func ReopenPipe(f *os.File, access int) (*os.File, error) {
	id, err := PipeID(f)
	if err != nil {
		return nil, err
	}
	return openPipe("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), id, access)
}

// ResizePipe makes a pipe n bytes large, rounded up by the kernel. The content stays. An unprivileged
// process may not go beyond fs.pipe-max-size, and its user not beyond fs.pipe-user-pages-soft for all
// pipes (EPERM); a pipe cannot become smaller than its content (EBUSY). Then it stays as large as it
// is, and the error wraps the kernel's.
func ResizePipe(f *os.File, n int) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, n); err != nil {
		return fmt.Errorf("cannot make a pipe %d bytes large: %w", n, err)
	}
	return nil
}

// PipeID returns the id of the pipe behind f, unique while any process holds the
// pipe: the inode of all its ends. Invalid if f is not an anonymous pipe.
func PipeID(f *os.File) (uint64, error) {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, fmt.Errorf("cannot stat the file system of a pipe: %w", err)
	}
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("cannot stat a pipe: %w", err)
	}
	if fs.Type != unix.PIPEFS_MAGIC || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return 0, fmt.Errorf("%s is not an anonymous pipe: %w", f.Name(), errs.Invalid)
	}
	return st.Ino, nil
}

// openPipe opens path and makes sure that it is the pipe id.
func openPipe(path string, id uint64, access int) (*os.File, error) {
	// Without O_NONBLOCK the open would wait for the other direction.
	fd, err := unix.Open(path, access|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot reopen a pipe: %w", Exhausted(err))
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot reopen a pipe: %w", err), unix.Close(fd))
	}
	f := os.NewFile(uintptr(fd), "|"+strconv.FormatUint(id, 10))
	got, err := PipeID(f)
	if err == nil && got != id {
		err = fmt.Errorf("%s is pipe %d, not %d: %w", path, got, id, errs.NotFound)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
