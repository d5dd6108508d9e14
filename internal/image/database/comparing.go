package database

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Compared provides the store's blobs. When a caller reads a blob from its beginning to its end, the last
// read fails if the content has another digest: a disk may have changed it.
func (d *DB) Compared() content.InfoReaderProvider { return comparing{d.Content} }

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

type comparing struct{ content.InfoReaderProvider }

// ReaderAt implements content.Provider.
func (c comparing) ReaderAt(ctx context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	r, err := c.InfoReaderProvider.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	return &comparedReader{ReaderAt: r, of: desc.Digest, verifier: desc.Digest.Verifier()}, nil
}

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
	if n > 0 && r.read == r.Size() && !r.verifier.Verified() {
		return n, &DamagedError{Blob: r.of, problem: "its content has another digest"}
	}
	return n, err
}
