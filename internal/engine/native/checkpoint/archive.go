package checkpoint

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// The names in an archive. checkpointctl, CRI-O and containerd have the same.
const (
	configEntry  = "config.dump"
	specEntry    = "spec.dump"
	deletedEntry = "deleted.files"
	diffEntry    = "rootfs-diff.tar"
	imagesEntry  = "checkpoint"
)

// archive is a file that appears at its location when it is whole. Only root can read it: the memory of a container
// has its secrets.
type archive struct {
	location string
	file     *os.File
	// named is the name that file has meanwhile, "" where the file system has files without a name.
	named string
	tar   *tar.Writer
}

// newArchive makes the file in the directory of its location. Kind Exists when something is at the location.
func newArchive(location string) (*archive, error) {
	switch _, err := os.Lstat(location); {
	case err == nil:
		return nil, fmt.Errorf("location: %s: a file is there: %w", location, errs.Exists)
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("location: %w: %w", err, errs.Invalid)
	}
	file, named, err := newFile(filepath.Dir(location))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("location: %w: %w", err, errs.Invalid)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the archive: %w", errs.OfDisk(err))
	}
	return &archive{location: location, file: file, named: named, tar: tar.NewWriter(file)}, nil
}

// newFile makes a file with mode 0600 in a directory. The kernel removes a file without a name when this process ends in
// any way. Where the file system has none, such as NFS, the file has a name.
func newFile(dir string) (file *os.File, named string, err error) {
	file, err = os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return file, "", err
	}
	if file, err = os.CreateTemp(dir, ".berth-checkpoint-"); err != nil {
		return nil, "", err
	}
	return file, file.Name(), nil
}

// discard removes what publish has not published. It is called in each case.
func (a *archive) discard() error {
	err := ignoreClosed(a.file.Close())
	if a.named != "" {
		err = errors.Join(err, errs.IgnoreNotExist(os.Remove(a.named)))
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// complete writes the end of the file.
func (a *archive) complete() error {
	if err := errors.Join(a.tar.Close(), a.file.Sync()); err != nil {
		return fmt.Errorf("cannot write the archive: %w", errs.OfDisk(err))
	}
	return nil
}

// publish gives the file, which is complete, its name. Kind Exists when another has appeared there.
func (a *archive) publish() error {
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", a.file.Fd()), unix.AT_FDCWD, a.location, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("location: %s: a file has appeared there: %w", a.location, errs.Exists)
	}
	if err != nil {
		return fmt.Errorf("cannot publish the archive: %w", errs.OfDisk(err))
	}
	if err = a.file.Close(); err == nil {
		err = sysfile.SyncFS(filepath.Dir(a.location))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot publish the archive: %w", errs.OfDisk(err)), os.Remove(a.location))
	}
	return nil
}

// addDump adds all that the dump has written.
func (a *archive) addDump(ctx context.Context, c *Container, d *dump) error {
	for name, part := range map[string]any{configEntry: &c.Config, specEntry: c.Spec} {
		data, err := json.Marshal(part)
		if err != nil {
			return fmt.Errorf("cannot encode %s: %w", name, err)
		}
		if err := a.add(ctx, name, int64(len(data)), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	for _, name := range []string{logName, statsName, diffEntry, deletedEntry} {
		if err := a.addFile(ctx, name, d.at(name)); err != nil {
			return err
		}
	}
	images, err := os.ReadDir(d.at(imagesName))
	if err != nil {
		return fmt.Errorf("cannot read what CRIU has written: %w", err)
	}
	if err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: imagesEntry + "/", Mode: 0o700, ModTime: time.Now()}); err != nil {
		return fmt.Errorf("cannot write the archive: %w", errs.OfDisk(err))
	}
	for _, image := range images {
		if !image.Type().IsRegular() {
			continue // CRIU leaves links to its last images
		}
		if err := a.addFile(ctx, path.Join(imagesEntry, image.Name()), filepath.Join(d.at(imagesName), image.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (a *archive) addFile(ctx context.Context, name, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("cannot read what CRIU has written: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("cannot read what CRIU has written: %w", err)
	}
	return a.add(ctx, name, info.Size(), f)
}

func (a *archive) add(ctx context.Context, name string, size int64, from io.Reader) error {
	err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: time.Now()})
	if err == nil {
		_, err = io.Copy(a.tar, &reader{ctx, from})
	}
	if err != nil {
		return fmt.Errorf("cannot write %s into the archive: %w", name, errs.OfDisk(err))
	}
	return nil
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
