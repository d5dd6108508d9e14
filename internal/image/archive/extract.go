package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Target is where one blob is written; see registry.Target.
type Target interface {
	BeginDownload(ctx context.Context, desc imagespec.Descriptor) (content.Writer, error)
	LeaveDownload(ctx context.Context, desc imagespec.Descriptor, keep bool) error
}

// Extract reads an archive until it has found a blob, and writes the blob to a target: a file of the archive, or the manifest
// that Read makes of an archive of docker save. What is written has the digest. got is called with the bytes that are
// written. NotFound if the archive does not have the blob; else the kinds of Read.
func Extract(ctx context.Context, stream io.Reader, want imagespec.Descriptor, to Target, got func(int64)) error {
	s := &sieve{ctx: ctx, want: want, to: to, got: got, heads: map[digest.Digest][]byte{}}
	_, err := Read(ctx, s, stream, Limits{Bytes: maxExtracted}, func(int64) {})
	switch {
	case s.found:
		return nil
	case s.failed != nil:
		return s.failed
	case err != nil:
		return err
	}
	return fmt.Errorf("the archive does not have it: %w", errs.NotFound)
}

// maxExtracted bounds how much is read of an archive for one blob: few bytes of it may stand for large holes.
const maxExtracted = 1 << 40

// errFound ends the reading of an archive.
var errFound = errors.New("the blob is found")

// sieve is the content store of an archive that is read for one blob. It keeps only what Read asks for: the first bytes of each
// file.
type sieve struct {
	content.Store
	ctx    context.Context //nolint:containedctx // of the one call of Extract
	want   imagespec.Descriptor
	to     Target
	got    func(int64)
	heads  map[digest.Digest][]byte
	found  bool
	failed error
}

// Writer implements content.Ingester.
func (s *sieve) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var asked content.WriterOpts
	for _, opt := range opts {
		if err := opt(&asked); err != nil {
			return nil, err
		}
	}
	w := &sifted{sieve: s, desc: asked.Desc}
	switch {
	case s.found:
		return nil, errFound
	case asked.Desc.Size == s.want.Size && (asked.Desc.Digest == s.want.Digest || asked.Desc.Digest == ""): // a larger file could fill the disk
		if err := w.begin(ctx); err != nil {
			return nil, err
		}
	case asked.Desc.Digest == "":
		w.digester = digest.Canonical.Digester()
	}
	return w, nil
}

// Abort implements content.IngestManager.
func (s *sieve) Abort(context.Context, string) error { return nil }

// ReaderAt implements content.Provider, with the first bytes of a file.
func (s *sieve) ReaderAt(_ context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	head, ok := s.heads[desc.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return headReader{bytes.NewReader(head)}, nil
}

// headReader implements content.ReaderAt.
type headReader struct{ *bytes.Reader }

func (headReader) Close() error { return nil }

// headSize is how much layerType reads.
const headSize = 4

// sifted is a file of the archive while it is read. It implements what Read calls of content.Writer.
type sifted struct {
	content.Writer // of the target, nil for a file that cannot be the blob
	sieve          *sieve
	desc           imagespec.Descriptor
	digester       digest.Digester
	head           []byte
	committed      bool
}

// begin opens the target.
func (w *sifted) begin(ctx context.Context) error {
	to, err := w.sieve.to.BeginDownload(ctx, w.sieve.want)
	if errdefs.IsAlreadyExists(err) {
		w.sieve.found = true
		return errFound
	}
	if err != nil {
		w.sieve.failed = fmt.Errorf("cannot write the blob: %w", errs.OfDisk(err))
		return err
	}
	w.Writer = to
	status, err := to.Status()
	if err == nil && status.Offset > 0 { // of a download that a registry has not completed
		err = to.Truncate(0)
	}
	if err != nil {
		w.sieve.failed = fmt.Errorf("cannot write the blob: %w", errs.OfDisk(err))
		return errors.Join(err, w.Close())
	}
	return nil
}

// Write implements io.Writer.
func (w *sifted) Write(p []byte) (int, error) {
	if err := context.Cause(w.sieve.ctx); err != nil { // a hole needs no read of the archive
		return 0, err
	}
	if missing := headSize - len(w.head); missing > 0 {
		w.head = append(w.head, p[:min(missing, len(p))]...)
	}
	switch {
	case w.Writer != nil:
		n, err := w.Writer.Write(p)
		w.sieve.got(int64(n))
		if err != nil {
			w.sieve.failed = fmt.Errorf("cannot write the blob: %w", errs.OfDisk(err))
		}
		return n, err
	case w.digester != nil:
		return w.digester.Hash().Write(p)
	}
	return len(p), nil
}

// Digest implements content.Writer. The digest of a file whose name has one is not computed, unless it may be the blob.
func (w *sifted) Digest() digest.Digest {
	switch {
	case w.Writer != nil:
		return w.Writer.Digest()
	case w.digester != nil:
		return w.digester.Digest()
	}
	return w.desc.Digest
}

// Commit implements content.Writer.
func (w *sifted) Commit(ctx context.Context, size int64, got digest.Digest, opts ...content.Opt) error {
	w.sieve.heads[got] = w.head
	if w.Writer == nil || got != w.sieve.want.Digest {
		return nil
	}
	if err := w.Writer.Commit(ctx, size, got, opts...); err != nil && !errdefs.IsAlreadyExists(err) {
		w.sieve.failed = fmt.Errorf("cannot write the blob: %w", errs.OfDisk(err))
		return err
	}
	w.committed, w.sieve.found = true, true
	return errFound // nothing else is read
}

// Close implements content.Writer. What is not the blob is removed.
func (w *sifted) Close() error {
	if w.Writer == nil {
		return nil
	}
	err := w.Writer.Close()
	if !w.committed {
		err = errors.Join(err, w.sieve.to.LeaveDownload(context.Background(), w.sieve.want, false))
	}
	return err
}
