// Package partfile writes the files of downloads, each of which a later download can continue. It knows neither registries
// nor databases.
package partfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// The files in the directory of a download: the bytes, what is downloaded, and how many bytes it has. A directory without one
// of the latter two is one that a kill has interrupted at its beginning.
const (
	DataName  = "data"
	RefName   = "ref"
	TotalName = "total"

	// maxName bounds the bytes of the latter two.
	maxName = 4096
)

// Writer writes the file of a download. It implements content.Writer. It syncs nothing: a kill loses no byte that was
// written, and what a loss of power damages has another digest at the end, and is downloaded again.
type Writer struct {
	dir, ref string
	desc     imagespec.Descriptor
	file     *os.File // nil after Commit or Close
	digester digest.Digester
	offset   int64
	begun    time.Time
	finish   func(ctx context.Context, data string) error
	ended    func()
}

// Open opens a writer for a blob at the end of what an earlier one has left in a directory. finish moves the file data, which
// has all bytes and the right digest, to its place. ended is called once, after Commit or Close.
func Open(dir, ref string, desc imagespec.Descriptor, finish func(ctx context.Context, data string) error, ended func()) (w *Writer, err error) {
	if !isOf(dir, ref, desc) {
		if err := create(dir, ref, desc); err != nil {
			return nil, err
		}
	}
	w = &Writer{dir: dir, ref: ref, desc: desc, digester: desc.Digest.Algorithm().Digester(), begun: time.Now(), finish: finish, ended: ended}
	w.file, err = os.OpenFile(filepath.Join(dir, DataName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, err
	}
	if w.offset, err = io.Copy(w.digester.Hash(), w.file); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	return w, nil
}

// isOf reports whether a directory is that of an earlier download of the blob.
func isOf(dir, ref string, desc imagespec.Descriptor) bool {
	was, err := sysfile.ReadRegular(filepath.Join(dir, RefName), maxName)
	if err != nil || string(was) != ref {
		return false
	}
	total, err := sysfile.ReadRegular(filepath.Join(dir, TotalName), maxName)
	return err == nil && string(total) == strconv.FormatInt(desc.Size, 10)
}

func create(dir, ref string, desc imagespec.Descriptor) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(dir, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		err = errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755))
	}
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, TotalName), strconv.AppendInt(nil, desc.Size, 10), 0o644),
		os.WriteFile(filepath.Join(dir, RefName), []byte(ref), 0o644))
}

// Write implements content.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.digester.Hash().Write(p[:n])
	w.offset += int64(n)
	return n, err
}

// Digest implements content.Writer.
func (w *Writer) Digest() digest.Digest { return w.digester.Digest() }

// Status implements content.Writer.
func (w *Writer) Status() (content.Status, error) {
	return content.Status{Ref: w.ref, Offset: w.offset, Total: w.desc.Size, Expected: w.desc.Digest, StartedAt: w.begun, UpdatedAt: time.Now()}, nil
}

// Truncate implements content.Writer.
func (w *Writer) Truncate(size int64) error {
	if size != 0 {
		return fmt.Errorf("cannot cut the download of blob %s at %d bytes, but only at 0: %w", w.desc.Digest, size, errdefs.ErrInvalidArgument)
	}
	if _, err := w.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w.offset = 0
	w.digester.Hash().Reset()
	return w.file.Truncate(0)
}

// Commit implements content.Writer. The error is errdefs.ErrFailedPrecondition if the blob has another size or digest.
func (w *Writer) Commit(ctx context.Context, size int64, expected digest.Digest, _ ...content.Opt) error {
	if w.file == nil {
		return fmt.Errorf("the download of blob %s has ended: %w", w.desc.Digest, errdefs.ErrFailedPrecondition)
	}
	if size > 0 && size != w.offset {
		return errors.Join(fmt.Errorf("the blob has %d bytes, want %d: %w", w.offset, size, errdefs.ErrFailedPrecondition), w.Close())
	}
	if is := w.Digest(); expected != "" && expected != is {
		return errors.Join(fmt.Errorf("the blob has the digest %s, want %s: %w", is, expected, errdefs.ErrFailedPrecondition), w.Close())
	}
	defer w.ended()
	fi, err := w.file.Stat()
	if err == nil {
		err = w.file.Chmod(fi.Mode().Perm() & 0o444) // nobody writes a blob
	}
	err = errors.Join(err, w.file.Close())
	w.file = nil
	if err == nil {
		err = w.finish(ctx, filepath.Join(w.dir, DataName))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(w.dir)
}

// Close implements content.Writer. What is written stays for a later download.
func (w *Writer) Close() error {
	if w.file == nil {
		return nil
	}
	defer w.ended()
	err := w.file.Close()
	w.file = nil
	return err
}
