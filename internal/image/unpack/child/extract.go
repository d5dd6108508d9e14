package child

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// extract writes the entries of an archive. Names are resolved as in a directory with the layers below in it: a directory
// that is a link there leads to where the link leads.
func (l *layer) extract(ctx context.Context, stream io.Reader) error {
	archive := tar.NewReader(stream)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		header.Name = filepath.Clean(header.Name)
		accepted, err := l.accept(header)
		if err != nil {
			return err
		}
		if !accepted {
			continue
		}
		if err := l.entry(header, archive); err != nil {
			l.named = true
			return fmt.Errorf("entry %q: %w", header.Name, err)
		}
	}
}

// entry writes one entry.
func (l *layer) entry(header *tar.Header, content io.Reader) error {
	name := strings.TrimPrefix(filepath.Join("/", header.Name), "/")
	if name == "" {
		return l.rootEntry(header)
	}
	dir, base := parent(name), filepath.Base(name)
	deletion := strings.HasPrefix(base, sysfile.WhiteoutPrefix)
	dir, there, err := l.enter(dir, deletion)
	if err != nil || !there {
		return err
	}
	if !deletion {
		l.needs(filepath.Join(dir, base))
	}
	path := filepath.Join(l.upper, dir, base)
	write, err := l.whiteout(header, path)
	if err != nil || !write {
		return err
	}
	return l.create(header, content, path)
}

// enter returns the directory that a name leads to, and makes it if it is missing. For a deletion it does not: there is false
// then, also where the layer has a file in the place of the directory.
//
// Entries of one directory follow each other in most archives. The directory of the entry before is looked up again only if
// a link led to it: an entry changes nothing but what is in its directory.
func (l *layer) enter(name string, deletion bool) (dir string, there bool, err error) {
	if name == l.entered {
		return name, true, nil
	}
	l.entered = ""
	dir, err = l.resolve(name)
	if err != nil || deletion && !l.has(dir) {
		return "", false, err
	}
	if err := l.makeDirectories(dir, deletion); err != nil {
		return "", false, err
	}
	if dir == name {
		l.entered = name
	}
	return dir, true, nil
}

// rootEntry sets the attributes of the root directory.
func (l *layer) rootEntry(header *tar.Header) error {
	if header.Typeflag != tar.TypeDir {
		return fmt.Errorf("the root of an image is a directory: %w", errs.Invalid)
	}
	l.root = true
	return l.setAttributes(header, l.upper)
}

// create makes the file of an entry in the place of what is there. Two directories are merged.
func (l *layer) create(header *tar.Header, content io.Reader, path string) error {
	if isRegular(header) {
		return l.createFile(header, content, path)
	}
	fi, err := os.Lstat(path)
	there := err == nil
	if there && (!fi.IsDir() || header.Typeflag != tar.TypeDir) {
		l.counter.unknown = true
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		there = false
	}
	mode := uint32(header.Mode & 0o7777)
	switch header.Typeflag {
	case tar.TypeDir:
		if !there {
			err = os.Mkdir(path, os.FileMode(mode&0o777))
			l.counter.made = append(l.counter.made, path)
		}
	case tar.TypeSymlink:
		err = os.Symlink(header.Linkname, path)
	case tar.TypeLink:
		return l.link(header.Linkname, path) // the attributes are those of the file that it names
	case tar.TypeFifo:
		err = mknod(path, unix.S_IFIFO|mode, 0)
	case tar.TypeChar:
		err = mknod(path, unix.S_IFCHR|mode, unix.Mkdev(uint32(header.Devmajor), uint32(header.Devminor)))
	case tar.TypeBlock:
		err = mknod(path, unix.S_IFBLK|mode, unix.Mkdev(uint32(header.Devmajor), uint32(header.Devminor)))
	default:
		return fmt.Errorf("files of the type %q are not known: %w", header.Typeflag, errs.Invalid)
	}
	if err != nil {
		return err
	}
	if there {
		if err := clearXattrs(path); err != nil {
			return err
		}
	}
	return l.setAttributes(header, path)
}

// isRegular reports whether an entry is a regular file.
func isRegular(header *tar.Header) bool {
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeRegA, tar.TypeCont, tar.TypeGNUSparse: //nolint:staticcheck // old archives have TypeRegA
		return true
	}
	return false
}

// createFile is create for a regular file. Most are new: whether something is in its place shows when the file is made.
func (l *layer) createFile(header *tar.Header, content io.Reader, path string) error {
	mode := uint32(header.Mode & 0o777)
	file, err := newFile(path, mode)
	if errors.Is(err, os.ErrExist) {
		l.counter.unknown = true
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		file, err = newFile(path, mode)
	}
	if err != nil {
		return err
	}
	if err := l.fill(file, content, header.Size, isSparse(header)); err != nil {
		return err
	}
	return l.setAttributes(header, path)
}

func mknod(path string, mode uint32, dev uint64) error {
	if err := unix.Mknod(path, mode, int(dev)); err != nil {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

// link makes path another name of a file of this layer or of one below. A file of a layer below becomes one of this
// layer first, as no file has names in two.
func (l *layer) link(to, path string) error {
	dir, base := filepath.Split(strings.TrimPrefix(filepath.Join("/", to), "/"))
	dir, err := l.resolve(dir)
	if err != nil {
		return err
	}
	target := filepath.Join(l.upper, dir, base)
	if _, err := os.Lstat(target); errors.Is(err, os.ErrNotExist) {
		if l.alone {
			return errNeedsLower
		}
		if err := l.copyUp(dir, base); err != nil {
			return err
		}
	}
	return os.Link(target, path)
}

// isSparse reports whether an entry of a regular file says where the file has holes.
func isSparse(header *tar.Header) bool {
	if header.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// newFile makes a regular file. os.OpenFile would ask the kernel whether it can poll it, with five system calls more.
func newFile(path string, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case !errors.Is(err, unix.EINTR):
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// holeSize is the least number of zeros that make a hole.
const holeSize = 4 << 10

// fill writes the content of a new file, and closes it. Blocks of zeros in a sparse one are holes.
func (l *layer) fill(file *os.File, content io.Reader, size int64, sparse bool) (err error) {
	defer func() { err = errors.Join(err, file.Close()) }()
	if l.buffer == nil {
		l.buffer = make([]byte, chunkSize)
	}
	if sparse {
		return fillSparse(file, content, size, l.buffer)
	}
	// Not by the file's ReadFrom: it takes a new buffer for each file.
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, content, l.buffer)
	return err
}

// fillSparse writes the content of a file without its blocks of zeros.
func fillSparse(file *os.File, content io.Reader, size int64, buffer []byte) error {
	var zeros [holeSize]byte
	for at := int64(0); at < size; {
		n, err := io.ReadFull(content, buffer[:min(int64(len(buffer)), size-at)])
		if err != nil {
			return err
		}
		for start := 0; start < n; start += holeSize {
			block := buffer[start:min(start+holeSize, n)]
			if string(block) == string(zeros[:len(block)]) {
				continue
			}
			if _, err := file.WriteAt(block, at+int64(start)); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return file.Truncate(size)
}
