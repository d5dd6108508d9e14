package checkpoint

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// writeDifference writes what the container has changed in its root filesystem: a tar archive of what is new, and a list
// of what is deleted, as JSON. upper is the upper directory of the overlay. A directory that replaces one of the image
// is in both: who applies them deletes first. Kind Unsupported for changes of an overlay that this cannot express.
func (d *dump) writeDifference(ctx context.Context, upper string) (err error) {
	root, err := os.OpenRoot(upper)
	if err != nil {
		return fmt.Errorf("cannot open the changes of its root filesystem: %w", err)
	}
	defer root.Close()
	file, err := os.OpenFile(d.at(diffEntry), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the changes of its root filesystem: %w", errs.OfDisk(err))
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := &difference{ctx: ctx, root: root, tar: tar.NewWriter(file), deleted: []string{}, links: map[inode]string{}}
	err = w.directory(".")
	if err == nil {
		err = w.tar.Close()
	}
	var deleted []byte
	if err == nil {
		deleted, err = json.Marshal(w.deleted)
	}
	if err == nil {
		err = os.WriteFile(d.at(deletedEntry), deleted, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the changes of its root filesystem: %w", errs.OfDisk(err))
	}
	return nil
}

// difference writes one upper directory. All its paths are resolved beneath root: processes that CRIU has not stopped, such as
// those of an exec, may change the directory.
type difference struct {
	ctx     context.Context //nolint:containedctx // the life of one walk
	root    *os.Root
	tar     *tar.Writer
	deleted []string
	// links are the names of files that have several.
	links map[inode]string
}

type inode struct{ device, inode uint64 }

// readBatch is how many names of a directory are read at a time.
const readBatch = 512

func (w *difference) directory(at string) error {
	dir, err := w.root.Open(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(readBatch)
		slices.Sort(names)
		for _, name := range names {
			if err := w.entry(path.Join(at, name)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *difference) entry(name string) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	info, err := w.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its status is unknown", name)
	}
	header := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX,
	}
	device := func(kind byte) error {
		header.Typeflag, header.Devmajor, header.Devminor = kind, int64(unix.Major(uint64(st.Rdev))), int64(unix.Minor(uint64(st.Rdev)))
		return w.tar.WriteHeader(header)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return w.subdirectory(header)
	case unix.S_IFREG:
		return w.regular(header, st)
	case unix.S_IFLNK:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = w.root.Readlink(name); err != nil {
			return err
		}
		return w.tar.WriteHeader(header)
	case unix.S_IFIFO:
		header.Typeflag = tar.TypeFifo
		return w.tar.WriteHeader(header)
	case unix.S_IFBLK:
		return device(tar.TypeBlock)
	case unix.S_IFCHR:
		if st.Rdev == 0 { // a whiteout
			w.deleted = append(w.deleted, "/"+name)
			return nil
		}
		return device(tar.TypeChar)
	default: // a socket is nothing without the process that listens on it
		return nil
	}
}

func (w *difference) subdirectory(header *tar.Header) error {
	dir, err := w.root.OpenFile(header.Name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	attributes, err := attributesOf(dir)
	dir.Close()
	if err != nil {
		return fmt.Errorf("%s: %w", header.Name, err)
	}
	if attributes.opaque {
		w.deleted = append(w.deleted, "/"+header.Name)
	}
	at := header.Name
	header.Typeflag, header.Name, header.PAXRecords = tar.TypeDir, at+"/", attributes.records
	if err := w.tar.WriteHeader(header); err != nil {
		return err
	}
	return w.directory(at)
}

func (w *difference) regular(header *tar.Header, st *syscall.Stat_t) error {
	if file := (inode{uint64(st.Dev), st.Ino}); st.Nlink > 1 { //nolint:unconvert // 32 bits on some architectures
		if first, known := w.links[file]; known {
			header.Typeflag, header.Linkname = tar.TypeLink, first
			return w.tar.WriteHeader(header)
		}
		w.links[file] = header.Name
	}
	// Not to wait for a writer, if a FIFO is in its place by now.
	f, err := w.root.OpenFile(header.Name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s changes its type: %w", header.Name, errs.Unavailable)
	}
	attributes, err := attributesOf(f)
	if err != nil {
		return fmt.Errorf("%s: %w", header.Name, err)
	}
	header.Typeflag, header.Size, header.PAXRecords = tar.TypeReg, info.Size(), attributes.records
	if err := w.tar.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.CopyN(w.tar, &reader{w.ctx, f}, header.Size); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s becomes shorter: %w", header.Name, errs.Unavailable)
	} else if err != nil {
		return err
	}
	return nil
}

// attributes are the extended attributes of a file. opaque is true for a directory that hides what the image has in it.
type attributes struct {
	records map[string]string
	opaque  bool
}

// The attributes of an overlay.
const (
	overlayPrefix   = "trusted.overlay."
	opaqueAttribute = overlayPrefix + "opaque"
	// paxPrefix precedes the name of an attribute in a tar archive.
	paxPrefix = "SCHILY.xattr."
)

// isElsewhere reports whether an attribute is of a file whose name or content is in a lower layer.
func isElsewhere(attribute string) bool {
	return attribute == overlayPrefix+"redirect" || attribute == overlayPrefix+"metacopy"
}

func attributesOf(f *os.File) (attributes, error) {
	var found attributes
	size, err := unix.Flistxattr(int(f.Fd()), nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && size == 0 {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	list := make([]byte, size)
	if size, err = unix.Flistxattr(int(f.Fd()), list); err != nil {
		return found, err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:size]), "\x00"), "\x00") {
		value := make([]byte, 64<<10) // the largest that the kernel has
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return found, err
		}
		switch {
		case isElsewhere(name):
			return found, fmt.Errorf("the overlay keeps it in another layer (%s): %w", name, errs.Unsupported)
		case name == opaqueAttribute:
			found.opaque = string(value[:n]) == "y"
		case strings.HasPrefix(name, overlayPrefix) || strings.ContainsRune(name, '='):
		default:
			if found.records == nil {
				found.records = map[string]string{}
			}
			found.records[paxPrefix+name] = string(value[:n])
		}
	}
	return found, nil
}
