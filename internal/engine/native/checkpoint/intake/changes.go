package intake

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// maxChanges bounds the entries of rootfs-diff.tar, and the names of deleted.files.
	maxChanges = 1 << 20
	// maxDepth bounds the directories in one another, as in an archive that berth writes.
	maxDepth = 1024
	// whiteout begins the names by which image layers delete something.
	whiteout  = ".wh."
	paxPrefix = "SCHILY.xattr."
)

// Delete removes from a mounted root filesystem what the container has deleted. No name leads out of it.
func (c *Contents) Delete(ctx context.Context, rootfs string) error {
	if c.deleted == "" {
		return nil
	}
	names, err := readNames(c.deleted)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		cleaned, err := clean(strings.TrimPrefix(name, "/"))
		if err != nil || cleaned == "." {
			return bad(deletedName, "%.300q is not a name in a root filesystem", name)
		}
		if strings.Count(cleaned, "/") > maxDepth {
			return bad(deletedName, "%.100q...: more than %d directories in one another", cleaned, maxDepth)
		}
		if err := root.RemoveAll(cleaned); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("%s: cannot delete %.300q: %w", deletedName, cleaned, err)
		}
	}
	return nil
}

// readNames reads a list in JSON, one name after the other: three bytes can be a name that takes many more in memory.
func readNames(path string) (names []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	decoder := json.NewDecoder(f)
	switch begin, err := decoder.Token(); {
	case err == nil && begin == nil: // null
		return nil, nil
	case err != nil || begin != json.Delim('['):
		return nil, errors.Join(bad(deletedName, "it is not a list of names"), err)
	}
	for decoder.More() {
		var name string
		if err := decoder.Decode(&name); err != nil {
			return nil, bad(deletedName, "%v", err)
		}
		if names = append(names, name); len(names) > maxChanges {
			return nil, bad(deletedName, "it has more than %d names", maxChanges)
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, bad(deletedName, "%v", err)
	}
	return names, nil
}

// Changes returns an archive of what is new in the root filesystem, for an unpacker of layers, and how many bytes its
// files have; nil for none. It has each entry as this package understands it, so that no two readers of the archive can
// understand it in two ways.
func (c *Contents) Changes(ctx context.Context) (changes *os.File, size int64, err error) {
	if c.changes == "" {
		return nil, 0, nil
	}
	from, err := os.Open(c.changes)
	if err != nil {
		return nil, 0, err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(c.dir, "changes.tar"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, 0, errs.OfDisk(err)
	}
	w := &changed{ctx: ctx, tar: tar.NewWriter(to), room: c.room}
	if err = w.entries(tar.NewReader(from)); err == nil {
		err = w.tar.Close()
	}
	if err == nil {
		_, err = to.Seek(0, io.SeekStart)
	}
	if err != nil {
		to.Close()
		return nil, 0, errs.OfDisk(err)
	}
	return to, w.size, nil
}

// changed writes the changes.
type changed struct {
	ctx        context.Context //nolint:containedctx // the life of one copy
	tar        *tar.Writer
	room, size int64
}

// badChange is the error of an entry of rootfs-diff.tar.
func badChange(name, format string, args ...any) error {
	return fmt.Errorf("%s: %.300q: %s: %w", diffName, name, fmt.Sprintf(format, args...), errs.Invalid)
}

func (w *changed) entries(r *tar.Reader) error {
	for range maxChanges {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %w", diffName, err, errs.Invalid)
		}
		if err := w.ctx.Err(); err != nil {
			return context.Cause(w.ctx)
		}
		kept, err := w.entry(header)
		if err != nil {
			return err
		}
		if kept == nil {
			continue
		}
		if err := w.tar.WriteHeader(kept); err != nil {
			return badChange(header.Name, "%v", err)
		}
		if n, err := io.Copy(w.tar, &reader{w.ctx, r}); err != nil || n != kept.Size {
			return errors.Join(badChange(header.Name, "it has %d bytes, not %d", n, kept.Size), errs.OfDisk(err))
		}
	}
	return fmt.Errorf("%s has more than %d entries: %w", diffName, maxChanges, errs.Invalid)
}

// entry returns what is restored of an entry, nil for the top. Devices are not: the request gives them.
func (w *changed) entry(h *tar.Header) (*tar.Header, error) {
	name, err := clean(h.Name)
	if err != nil {
		return nil, badChange(h.Name, "its name leads out of the root filesystem")
	}
	if name == "." {
		return nil, nil //nolint:nilnil // the top is the request's
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, whiteout) {
			return nil, badChange(h.Name, "a name that begins with %s deletes something", whiteout)
		}
	}
	if strings.Count(name, "/") > maxDepth {
		return nil, badChange(h.Name, "more than %d directories in one another", maxDepth)
	}
	kept := &tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Format: tar.FormatPAX}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, paxPrefix) {
			if kept.PAXRecords == nil {
				kept.PAXRecords = map[string]string{}
			}
			kept.PAXRecords[key] = value
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		kept.Name += "/"
	case tar.TypeReg:
		if err := sparse(h); err != nil {
			return nil, fmt.Errorf("%s: %w", diffName, err)
		}
		kept.Size = h.Size
		if w.size += h.Size; h.Size < 0 || w.size > w.room {
			return nil, fmt.Errorf("%s: %.300q needs more than half of the disk that is free where berth has its state: %w", diffName, h.Name, errs.Exhausted)
		}
	case tar.TypeSymlink:
		kept.Linkname = h.Linkname
	case tar.TypeLink:
		if kept.Linkname, err = clean(h.Linkname); err != nil || path.Clean(kept.Linkname) == "." {
			return nil, badChange(h.Name, "it is another name of %.300q, which leads out of the root filesystem", h.Linkname)
		}
	case tar.TypeFifo:
	default:
		return nil, badChange(h.Name, "it is a device or of an unknown kind (type %q)", h.Typeflag)
	}
	return kept, nil
}
