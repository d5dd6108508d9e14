package growing

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipeSize is how many bytes of a layer wait for the reader of a pipe.
const pipeSize = 1 << 20

// Pipe returns a pipe for CopyTo.
func Pipe() (r, w *os.File, err error) {
	r, w, err = os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	raw, err := w.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) }) // a smaller one does, too
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close(), w.Close())
	}
	return r, w, nil
}

// CopyTo writes all bytes of the download to a pipe as they come. read is called with the number of bytes of each piece. The
// error is ErrEnded if not all bytes come, and the cause of ctx if that ends. If somebody closes the pipe, CopyTo ends with the
// next piece.
func (f *File) CopyTo(ctx context.Context, pipe *os.File, read func(int64)) error {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	for done := int64(0); done < f.size; {
		data, has, err := f.await(ctx, done)
		if err != nil {
			return err
		}
		n, err := splice(data, done, raw, int(min(has, f.size)-done))
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF // somebody has cut the file
		}
		done += n
		read(n)
	}
	return nil
}

// splice moves at most so many bytes of a file to a pipe, without a copy of them. It waits until the pipe has room.
func splice(file *os.File, offset int64, pipe syscall.RawConn, most int) (n int64, err error) {
	from, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = pipe.Write(func(to uintptr) bool {
		controlErr := from.Control(func(fd uintptr) {
			at := offset
			n, failed = unix.Splice(int(fd), &at, int(to), nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			for errors.Is(failed, unix.EINTR) {
				n, failed = unix.Splice(int(fd), &at, int(to), nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			}
		})
		if controlErr != nil {
			failed = controlErr
		}
		return !errors.Is(failed, unix.EAGAIN)
	})
	return n, errors.Join(err, failed)
}
