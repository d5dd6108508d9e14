// Package intake reads the archive of a checkpoint that nobody trusts, into a directory of its own.
//
// It takes the parts that are restored, each under a name of its own, and nothing else: an archive is not unpacked.
// The OCI spec, the log and the description of the pod in an archive are never read. All names are opened below
// directories that others cannot change, and no link is followed.
package intake

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
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// The names in an archive.
const (
	configName  = "config.dump"
	deletedName = "deleted.files"
	diffName    = "rootfs-diff.tar"
	imagesName  = "checkpoint"
)

const (
	// maxText bounds config.dump, and maxDeleted deleted.files.
	maxText    = 1 << 20
	maxDeleted = 64 << 20
	// maxEntries bounds the entries of an archive: there are some files for each process.
	maxEntries = 1 << 18
	// maxName bounds the name of an image file.
	maxName = 255
)

// Contents is what an archive has.
type Contents struct {
	// Name is that of the container, "" where it has none.
	Name string
	// Image is the base image of the container, by id and by a reference with a digest, "" where it has none.
	Image, ImageRef string
	// Images is a directory with the image files of CRIU.
	Images string
	// deleted and changes are files: what is deleted and new in the root filesystem. "" for none.
	deleted, changes string
	// room is how much more may be written.
	room int64
	dir  string
}

// intake is the state of one reading.
type intake struct {
	ctx  context.Context //nolint:containedctx // the life of one reading
	dir  string
	room int64
	seen map[string]bool
}

// FromFile reads the archive at a path of the host into dir, a directory that it makes. Kind Invalid when the archive
// is at fault, NotFound when there is none, Exhausted when it needs more than half of the disk that is free. The caller
// removes dir, also after an error.
func FromFile(ctx context.Context, location, dir string) (*Contents, error) {
	f, err := os.OpenFile(location, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file: %w", location, errs.Invalid))
	}
	in, err := begin(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := in.tar(tar.NewReader(f)); err != nil {
		return nil, err
	}
	return in.contents()
}

// FromDirectory reads an archive that was unpacked into a directory, such as that of an image.
func FromDirectory(ctx context.Context, from, dir string) (*Contents, error) {
	top, err := os.OpenFile(from, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	in, err := begin(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := in.directory(top, ""); err != nil {
		return nil, err
	}
	return in.contents()
}

func begin(ctx context.Context, dir string) (*intake, error) {
	if err := os.MkdirAll(filepath.Join(dir, imagesName), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of a restore: %w", errs.OfDisk(err))
	}
	free, err := sysfile.DiskFree(dir)
	if err != nil {
		return nil, err
	}
	return &intake{ctx: ctx, dir: dir, room: free / 2, seen: map[string]bool{}}, nil
}

// bad is the error of an entry.
func bad(name, format string, args ...any) error {
	return fmt.Errorf("%.300q of the archive: %s: %w", name, fmt.Sprintf(format, args...), errs.Invalid)
}

func (in *intake) tar(r *tar.Reader) error {
	for range maxEntries {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive: %w: %w", err, errs.Invalid)
		}
		name, err := clean(header.Name)
		if err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
		case tar.TypeReg:
			if err = sparse(header); err == nil {
				err = in.file(name, header.Size, r)
			}
		default:
			err = bad(header.Name, "it is neither a directory nor a regular file (type %q)", header.Typeflag)
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("the archive has more than %d entries: %w", maxEntries, errs.Invalid)
}

// sparse refuses a file whose holes are not in the archive: a few bytes would fill the disk.
func sparse(h *tar.Header) error {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return bad(h.Name, "it is a sparse file")
		}
	}
	return nil
}

// clean returns a name relative to the top, "." for the top itself.
func clean(name string) (string, error) {
	cleaned := path.Clean(name)
	if path.IsAbs(name) || cleaned == ".." || strings.HasPrefix(cleaned, "../") || strings.ContainsRune(name, 0) || len(name) >= unix.PathMax {
		return "", bad(name, "its name leads out of the archive")
	}
	return cleaned, nil
}

// directory reads the directories of an unpacked archive: the top, and the one with CRIU's images.
func (in *intake) directory(dir *os.File, at string) error {
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(names) > maxEntries {
		return bad(at, "it has more than %d entries", maxEntries)
	}
	for _, base := range names {
		name := path.Join(at, base)
		if name == imagesName {
			images, err := os.OpenFile(filepath.Join(fmt.Sprint("/proc/self/fd/", dir.Fd()), base), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
			if err != nil {
				return bad(name, "%v", err)
			}
			err = in.directory(images, name)
			images.Close()
			if err != nil {
				return err
			}
			continue
		}
		if in.limit(name) == 0 {
			continue
		}
		if err := in.copied(dir, name); err != nil {
			return err
		}
	}
	return nil
}

func (in *intake) copied(dir *os.File, name string) error {
	f, err := sysfile.OpenBeneath(dir, path.Base(name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return bad(name, "%v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return bad(name, "it is not a regular file")
	}
	return in.file(name, info.Size(), f)
}

// limit returns how large an entry may be, 0 for one that is not read.
func (in *intake) limit(name string) int64 {
	switch {
	case name == configName:
		return maxText
	case name == deletedName:
		return maxDeleted
	case name == diffName, path.Dir(name) == imagesName:
		return in.room
	}
	return 0
}

// file takes an entry that berth restores. It skips all others.
func (in *intake) file(name string, size int64, content io.Reader) error {
	limit := in.limit(name)
	if limit == 0 && in.room > 0 {
		return nil
	}
	if in.seen[name] {
		return bad(name, "it is there twice")
	}
	in.seen[name] = true
	if len(path.Base(name)) > maxName {
		return bad(name, "its name is too long")
	}
	if size > in.room {
		return fmt.Errorf("%q of the archive has %d bytes: they need more than half of the disk that is free where berth has its state: %w", name, size, errs.Exhausted)
	}
	if size > limit {
		return bad(name, "it has %d bytes, more than %d", size, limit)
	}
	in.room -= size
	out, err := os.OpenFile(filepath.Join(in.dir, filepath.FromSlash(name)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errs.OfDisk(err)
	}
	n, err := io.Copy(out, io.LimitReader(&reader{in.ctx, content}, size))
	switch {
	case in.ctx.Err() != nil:
		err = context.Cause(in.ctx)
	case err != nil && errs.Kind(errs.OfDisk(err)) == nil:
		err = bad(name, "%v", err)
	case err == nil && n != size:
		err = bad(name, "it has %d bytes, not %d", n, size)
	}
	return errors.Join(errs.OfDisk(err), errs.OfDisk(out.Close()))
}

// reader reads until its context ends.
type reader struct {
	ctx  context.Context //nolint:containedctx // the life of one copy
	from io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.from.Read(p)
}

// contents decodes the description.
func (in *intake) contents() (*Contents, error) {
	c, err := Open(in.dir)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(in.dir, configName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, bad(configName, "it is missing: this is not the archive of a checkpoint")
	}
	if err != nil {
		return nil, err
	}
	var config struct{ Name, RootfsImage, RootfsImageRef string }
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, bad(configName, "%v", err)
	}
	c.Name, c.Image, c.ImageRef = config.Name, config.RootfsImage, config.RootfsImageRef
	return c, nil
}

// Open returns what FromFile or FromDirectory has put into a directory, without the base image.
func Open(dir string) (*Contents, error) {
	free, err := sysfile.DiskFree(dir)
	if err != nil {
		return nil, err
	}
	c := &Contents{Images: filepath.Join(dir, imagesName), room: free / 2, dir: dir}
	for name, to := range map[string]*string{deletedName: &c.deleted, diffName: &c.changes} {
		at := filepath.Join(dir, name)
		if _, err := os.Lstat(at); err == nil {
			*to = at
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return c, nil
}
