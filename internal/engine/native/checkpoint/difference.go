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
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// writeDifference writes what the container has changed in its root filesystem: a tar archive of what is new, and a list
// of what is deleted, as JSON. upper is the upper directory of the overlay. A directory that replaces one of the image
// is in both: who applies them deletes first. Kind State for changes of an overlay that this cannot express, and
// for names that are too long, Exhausted when the changes need more than half of the free disk: the archive needs as much.
func (d *dump) writeDifference(ctx context.Context, upper string) error {
	free, err := sysfile.DiskFree(d.dir)
	if err == nil {
		err = d.writeAtMost(ctx, upper, free/2)
	}
	if err != nil {
		return fmt.Errorf("cannot write the changes of its root filesystem: %w", errs.OfDisk(err))
	}
	return nil
}

// writeAtMost writes no more than room bytes.
func (d *dump) writeAtMost(ctx context.Context, upper string, room int64) (err error) {
	dir, err := os.OpenFile(upper, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	file, err := os.OpenFile(d.at(diffEntry), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out := &bounded{to: file, room: room}
	w := &difference{ctx: ctx, out: out, tar: tar.NewWriter(out), deleted: []string{}, links: map[inode]string{}}
	if err := w.directory(dir, "", 0); err != nil {
		return err
	}
	if err := w.tar.Close(); err != nil {
		return err
	}
	deleted, err := json.Marshal(w.deleted)
	if err != nil {
		return err
	}
	return os.WriteFile(d.at(deletedEntry), deleted, 0o600)
}

// bounded is a file that does not become larger than there is room.
type bounded struct {
	to   io.Writer
	room int64
}

func (b *bounded) take(n int64) error {
	if n > b.room {
		return fmt.Errorf("they need more than half of the disk that is free where berth has its state: %w", errs.Exhausted)
	}
	b.room -= n
	return nil
}

func (b *bounded) Write(p []byte) (int, error) {
	if err := b.take(int64(len(p))); err != nil {
		return 0, err
	}
	return b.to.Write(p)
}

// difference writes one upper directory. Processes that CRIU has not stopped, such as those of an exec, may change the
// directory meanwhile. So each name is resolved once, to a handle that opens nothing, and the type of what is behind
// the handle is known before its content is opened: no device is opened, and no open waits for a process.
type difference struct {
	ctx     context.Context //nolint:containedctx // the life of one walk
	out     *bounded
	tar     *tar.Writer
	deleted []string
	// links are the names of files that have several.
	links map[inode]string
}

type inode struct{ device, inode uint64 }

const (
	// readBatch is how many names of a directory are read at a time.
	readBatch = 512
	// maxDepth bounds the directories in a directory: each is open meanwhile.
	maxDepth = 1024
)

// directory writes what is in dir, which has the name at, "" at the top.
func (w *difference) directory(dir *os.File, at string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%.100s...: more than %d directories in one another: %w", at, maxDepth, errs.State)
	}
	for {
		names, err := dir.Readdirnames(readBatch)
		slices.Sort(names)
		for _, name := range names {
			if err := w.entry(dir, path.Join(at, name), depth); err != nil {
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

func (w *difference) entry(dir *os.File, name string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	if len(name) >= unix.PathMax {
		return fmt.Errorf("%.100s...: a name of %d bytes: no program could open it: %w", name, len(name), errs.State)
	}
	h, err := hold(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.file.Close()
	return w.held(h, depth)
}

// handle is an entry of a directory, by a descriptor that opens nothing.
type handle struct {
	file *os.File
	st   unix.Stat_t
	// name is relative to the top.
	name string
}

// hold resolves the last part of a name in its directory. It follows no link.
func hold(dir *os.File, name string) (*handle, error) {
	file, err := sysfile.OpenEntry(dir, path.Base(name))
	if err != nil {
		return nil, err
	}
	h := &handle{file: file, name: name}
	if err := unix.Fstat(int(file.Fd()), &h.st); err != nil {
		file.Close()
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return h, nil
}

// content opens what the handle holds, which is a regular file, also when it has lost its name. It does not wait for
// the end of a lease.
func (h *handle) content() (*os.File, error) {
	return os.OpenFile(fmt.Sprint("/proc/self/fd/", h.file.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// held writes what a handle holds.
func (w *difference) held(h *handle, depth int) error {
	st := &h.st
	header := &tar.Header{
		Name: h.name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX,
	}
	device := func(kind byte) error {
		header.Typeflag, header.Devmajor, header.Devminor = kind, int64(unix.Major(uint64(st.Rdev))), int64(unix.Minor(uint64(st.Rdev)))
		return w.tar.WriteHeader(header)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return w.subdirectory(h, header, depth)
	case unix.S_IFREG:
		return w.regular(h, header)
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(h.file.Fd()), "", target)
		if err != nil {
			return &fs.PathError{Op: "readlink", Path: h.name, Err: err}
		}
		header.Typeflag, header.Linkname = tar.TypeSymlink, string(target[:n])
		return w.tar.WriteHeader(header)
	case unix.S_IFIFO:
		header.Typeflag = tar.TypeFifo
		return w.tar.WriteHeader(header)
	case unix.S_IFBLK:
		return device(tar.TypeBlock)
	case unix.S_IFCHR:
		if st.Rdev == 0 { // a whiteout
			return w.remove(h.name)
		}
		return device(tar.TypeChar)
	default: // a socket is nothing without the process that listens on it
		return nil
	}
}

// remove adds a name to the list of what is deleted.
func (w *difference) remove(name string) error {
	w.deleted = append(w.deleted, "/"+name)
	return w.out.take(int64(len(name)) + 1)
}

func (w *difference) subdirectory(h *handle, header *tar.Header, depth int) error {
	dir, err := sysfile.OpenDirectory(h.file, ".")
	if err != nil {
		return err
	}
	defer dir.Close()
	attributes, err := attributesOf(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	if attributes.opaque {
		if err := w.remove(h.name); err != nil {
			return err
		}
	}
	header.Typeflag, header.Name, header.PAXRecords = tar.TypeDir, h.name+"/", attributes.records
	if err := w.tar.WriteHeader(header); err != nil {
		return err
	}
	return w.directory(dir, h.name, depth+1)
}

func (w *difference) regular(h *handle, header *tar.Header) error {
	if file := (inode{uint64(h.st.Dev), h.st.Ino}); h.st.Nlink > 1 { //nolint:unconvert // 32 bits on some architectures
		if first, known := w.links[file]; known {
			header.Typeflag, header.Linkname = tar.TypeLink, first
			return w.tar.WriteHeader(header)
		}
		w.links[file] = h.name
	}
	f, err := h.content()
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	attributes, err := attributesOf(f)
	if err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	header.Typeflag, header.Size, header.PAXRecords = tar.TypeReg, info.Size(), attributes.records
	if header.Size > w.out.room { // before much of it is written
		return fmt.Errorf("%s has %d bytes: %w", h.name, header.Size, w.out.take(header.Size))
	}
	if err := w.tar.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.CopyN(w.tar, &reader{w.ctx, f}, header.Size); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s becomes shorter: %w", h.name, errs.Unavailable)
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
			return found, fmt.Errorf("the overlay keeps it in another layer (%s): %w", name, errs.State)
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
