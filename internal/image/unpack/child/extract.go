package child

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	dir, base := filepath.Split(name)
	dir, err := l.resolve(dir)
	if err != nil {
		return err
	}
	deletion := strings.HasPrefix(base, sysfile.WhiteoutPrefix)
	if deletion && !l.has(dir) {
		return nil // nothing is to delete, also where the layer has a file in the place of the directory
	}
	if err := l.makeDirectories(dir, deletion); err != nil {
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
	fi, err := os.Lstat(path)
	there := err == nil
	if there && (!fi.IsDir() || header.Typeflag != tar.TypeDir) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		there = false
	}
	mode := uint32(header.Mode & 0o7777)
	switch header.Typeflag {
	case tar.TypeDir:
		if !there {
			err = os.Mkdir(path, 0o700)
		}
	case tar.TypeReg, tar.TypeRegA, tar.TypeCont: //nolint:staticcheck // old archives have TypeRegA
		err = writeFile(path, content, header.Size, isSparse(header))
	case tar.TypeGNUSparse:
		err = writeFile(path, content, header.Size, true)
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
	return slices.ContainsFunc(slices.Collect(maps.Keys(header.PAXRecords)), func(key string) bool { return strings.HasPrefix(key, "GNU.sparse.") })
}

const (
	copyChunk = 64 << 10
	// holeSize is the least number of zeros that make a hole.
	holeSize = 4 << 10
)

// writeFile makes a regular file. Blocks of zeros in a sparse one are holes.
func writeFile(path string, content io.Reader, size int64, sparse bool) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if !sparse {
		_, err := io.Copy(file, content)
		return err
	}
	buffer, zeros := make([]byte, copyChunk), make([]byte, holeSize)
	for at := int64(0); at < size; {
		n, err := io.ReadFull(content, buffer[:min(copyChunk, size-at)])
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
