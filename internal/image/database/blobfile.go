package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// FileProblem looks at a blob's file without reading it: "" for a regular file of the right size, or
// for the link of a preloaded blob to one. A file that cannot be looked at now may be whole.
func (d *DB) FileProblem(info content.Info) string {
	path := d.BlobPath(info.Digest)
	fi, err := os.Lstat(path)
	if err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		from := PreloadedFrom(info)
		target, err := os.Readlink(path)
		if err == nil && (from == "" || !strings.HasPrefix(target, filepath.Clean(from)+string(filepath.Separator))) {
			return fmt.Sprintf("its file is a symbolic link to %s, and the store follows none", target)
		}
	}
	fi, err = os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "its file is missing"
	case err == nil && !fi.Mode().IsRegular():
		return "its file is " + TypeOf(fi.Mode())
	case err == nil && fi.Size() != info.Size:
		return fmt.Sprintf("its file has %d bytes, want %d", fi.Size(), info.Size)
	}
	return ""
}

// TypeOf names the type of a file for people.
func TypeOf(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a named pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a device"
}

// OpenBlob opens the file of a blob, without waiting for the writer of a named pipe. It returns an error
// of kind Invalid unless the file is regular.
func (p Paths) OpenBlob(dgst digest.Digest) (*os.File, error) {
	f, err := os.OpenFile(p.BlobPath(dgst), os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("the file of blob %s is %s: %w", dgst, TypeOf(fi.Mode()), errs.Invalid)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// regularBlobs is a content store that opens only regular files, and that knows which files the collector may not remove
// though the database does not know them.
type regularBlobs struct {
	content.Store
	db *DB
}

// Walk implements content.Manager. The collector removes blobs that the database does not know.
func (r regularBlobs) Walk(ctx context.Context, fn content.WalkFunc, filters ...string) error {
	return r.Store.Walk(ctx, func(info content.Info) error {
		if r.db.finished.keeps(info.Digest) {
			return nil
		}
		return fn(info)
	}, filters...)
}

// ListStatuses implements content.IngestManager.
func (r regularBlobs) ListStatuses(context.Context, ...string) ([]content.Status, error) {
	return r.db.statuses()
}

// ReaderAt implements content.Provider.
func (r regularBlobs) ReaderAt(ctx context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	if fi, err := os.Stat(r.db.BlobPath(desc.Digest)); err == nil && !fi.Mode().IsRegular() {
		return nil, &DamagedError{Blob: desc.Digest, problem: "its file is " + TypeOf(fi.Mode())}
	}
	return r.Store.ReaderAt(ctx, desc)
}

// maxOwn bounds the small files of the store, in bytes.
const maxOwn = 1 << 20

// ReadOwn reads a small file of the store itself. It follows no link, and a named pipe does not block
// it.
func ReadOwn(path string) ([]byte, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is %s: %w", path, TypeOf(fi.Mode()), errs.Invalid)
	}
	return sysfile.ReadRegular(path, maxOwn)
}

// Compared provides the store's blobs, also those that are finished and not recorded. When a caller reads a blob from its
// beginning to its end, the last read fails if the content has another digest: a disk may have changed it.
func (d *DB) Compared() content.InfoReaderProvider { return comparing{d.Content, d} }

// DamagedError is the error of a blob whose file is damaged. Its kind is Invalid.
type DamagedError struct {
	Blob    digest.Digest
	problem string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("blob %s is damaged on disk: %s; run berth image fsck --repair, or pull or import its image again: %v", e.Blob, e.problem, errs.Invalid)
}

// Unwrap returns the kind.
func (e *DamagedError) Unwrap() error { return errs.Invalid }

type comparing struct {
	content.InfoReaderProvider
	db *DB
}

// ReaderAt implements content.Provider.
func (c comparing) ReaderAt(ctx context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	read := c.InfoReaderProvider.ReaderAt
	if c.db.finished.has(desc.Digest) { // if not, the database has the record by now
		read = c.db.readFinished
	}
	r, err := read(ctx, desc)
	if errdefs.IsNotFound(err) {
		if _, known := c.db.Content.Info(ctx, desc.Digest); known == nil { // else it was removed
			return nil, &DamagedError{Blob: desc.Digest, problem: "its file is missing"}
		}
	}
	if err != nil {
		return nil, err
	}
	return &comparedReader{ReaderAt: r, of: desc.Digest, verifier: desc.Digest.Verifier()}, nil
}

// readFinished is ReaderAt for a blob that the database need not know.
func (d *DB) readFinished(_ context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	file, err := d.OpenBlob(desc.Digest)
	if err != nil {
		return nil, err
	}
	fi, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return sizedFile{file, fi.Size()}, nil
}

// sizedFile is a file as content.ReaderAt.
type sizedFile struct {
	*os.File
	size int64
}

// Size implements content.ReaderAt.
func (f sizedFile) Size() int64 { return f.size }

type comparedReader struct {
	content.ReaderAt
	of       digest.Digest
	verifier digest.Verifier
	// read is how much was read without a gap.
	read int64
}

// ReadAt implements io.ReaderAt. The read of the last byte fails if any of them is wrong.
func (r *comparedReader) ReadAt(p []byte, at int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, at)
	if at != r.read {
		return n, err
	}
	_, _ = r.verifier.Write(p[:n])
	r.read += int64(n)
	if (n > 0 || r.Size() == 0) && r.read == r.Size() && !r.verifier.Verified() {
		return n, &DamagedError{Blob: r.of, problem: "its content has another digest"}
	}
	return n, err
}
