package sysfile

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyChunk is how much of a file is copied between two looks at the context.
const copyChunk = 16 << 20

// CopyContent copies all that the regular file from has into to, which is empty. It shares the blocks where the file
// system can, and leaves out the holes elsewhere. copied is called with the bytes of each piece, holes included. It ends soon
// after ctx does, with the context's cause. Nobody changes from meanwhile.
func CopyContent(ctx context.Context, to, from *os.File, copied func(int64)) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return pathError("stat", from.Name(), err)
	}
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		copied(st.Size)
		return nil
	}
	var done int64
	for done < st.Size {
		data, hole, err := nextData(from, done, st.Size)
		if err != nil {
			return err
		}
		copied(data - done)
		if err := copyRange(ctx, to, 0, from, data, hole, copied); err != nil {
			return err
		}
		done = hole
	}
	return pathError("truncate", to.Name(), unix.Ftruncate(int(to.Fd()), st.Size)) // it may end with a hole
}

// CopyContentAt copies all that the regular file from has to an offset of the file to, which ends there, as CopyContent does. If
// from ends with a hole, to ends before it.
func CopyContentAt(ctx context.Context, to *os.File, offset int64, from *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return pathError("stat", from.Name(), err)
	}
	for done := int64(0); done < st.Size; {
		data, hole, err := nextData(from, done, st.Size)
		if err != nil {
			return err
		}
		if err := copyRange(ctx, to, offset, from, data, hole, func(int64) {}); err != nil {
			return err
		}
		done = hole
	}
	return nil
}

// nextData returns where the next data of a file begins and ends, from an offset on. Both are size where only a hole is left.
func nextData(f *os.File, from, size int64) (data, hole int64, err error) {
	data, err = unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // a file system that does not say
		return from, size, nil
	case err != nil:
		return 0, 0, pathError("find data in", f.Name(), err)
	}
	hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	return min(data, size), min(hole, size), pathError("find a hole in", f.Name(), err)
}

// copyRange copies the bytes from data to hole, to where they are from an offset on.
func copyRange(ctx context.Context, to *os.File, offset int64, from *os.File, data, hole int64, copied func(int64)) error {
	if _, err := to.Seek(offset+data, io.SeekStart); err != nil {
		return err
	}
	if _, err := from.Seek(data, io.SeekStart); err != nil {
		return err
	}
	for data < hole {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.CopyN(to, from, min(copyChunk, hole-data)) // in the kernel
		copied(n)
		data += n
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}
