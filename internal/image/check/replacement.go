package check

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
)

// replacement is a registry.Target whose blob takes the place of a damaged file. What the database
// says of the blob stays true meanwhile.
type replacement struct{ path string }

// newName is the file until it is complete.
func (t replacement) newName() string { return database.MendingPath(t.path) }

// BeginDownload implements registry.Target.
func (t replacement) BeginDownload(_ context.Context, desc imagespec.Descriptor) (content.Writer, error) {
	if err := os.RemoveAll(t.newName()); err != nil {
		return nil, errs.OfDisk(err)
	}
	f, err := os.OpenFile(t.newName(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, errs.OfDisk(err)
	}
	return &replacing{f: f, target: t, desc: desc, digester: desc.Digest.Algorithm().Digester()}, nil
}

// LeaveDownload implements registry.Target.
func (t replacement) LeaveDownload(context.Context, imagespec.Descriptor, bool) error {
	return errs.IgnoreNotExist(os.Remove(t.newName()))
}

// replacing implements content.Writer.
type replacing struct {
	f        *os.File
	target   replacement
	desc     imagespec.Descriptor
	offset   int64
	digester digest.Digester
}

func (w *replacing) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.offset += int64(n)
	w.digester.Hash().Write(p[:n])
	return n, errs.OfDisk(err)
}

func (w *replacing) Close() error { return w.f.Close() }

func (w *replacing) Digest() digest.Digest { return w.digester.Digest() }

func (w *replacing) Status() (content.Status, error) {
	return content.Status{Ref: w.target.path, Offset: w.offset, Total: w.desc.Size, UpdatedAt: time.Now()}, nil
}

// Truncate implements content.Writer: nothing begins again in the same file.
func (w *replacing) Truncate(int64) error { return errs.Unsupported }

// Commit implements content.Writer.
func (w *replacing) Commit(_ context.Context, size int64, expected digest.Digest, _ ...content.Opt) error {
	if w.offset != size || w.Digest() != expected {
		return fmt.Errorf("%d bytes with digest %s, want %d with %s: %w", w.offset, w.Digest(), size, expected, errdefs.ErrFailedPrecondition)
	}
	if err := w.f.Sync(); err != nil {
		return errs.OfDisk(err)
	}
	if fi, err := os.Lstat(w.target.path); err == nil && fi.IsDir() {
		// Only an exchange takes the place of a directory.
		if err := unix.Renameat2(unix.AT_FDCWD, w.target.newName(), unix.AT_FDCWD, w.target.path, unix.RENAME_EXCHANGE); err != nil {
			return errs.OfDisk(err)
		}
		return os.RemoveAll(w.target.newName())
	}
	return os.Rename(w.target.newName(), w.target.path)
}
