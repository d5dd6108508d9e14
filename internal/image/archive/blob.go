package archive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// blob stores one file of the archive.
func (r *reader) blob(ctx context.Context, name string, size int64, body io.Reader) error {
	if r.stored += size; r.stored > r.limits.Bytes {
		return fmt.Errorf("archive entry %q needs more than the %d bytes that the disk has left: %w", name, r.limits.Bytes, errs.Exhausted)
	}
	desc := imagespec.Descriptor{Digest: digestInName(name), Size: size}
	written, err := r.write(ctx, name, desc, body)
	if err != nil {
		return err
	}
	r.blobs[name] = written
	return nil
}

// write stores body and returns its descriptor. The caller may know the digest already.
func (r *reader) write(ctx context.Context, name string, desc imagespec.Descriptor, body io.Reader) (imagespec.Descriptor, error) {
	ref := "import-" + strings.ToLower(rand.Text())
	w, err := content.OpenWriter(ctx, r.store, content.WithRef(ref), content.WithDescriptor(desc))
	if errdefs.IsAlreadyExists(err) {
		// Check the digest even so: Read refuses an archive with any wrong blob.
		return desc, check(name, desc, body)
	}
	if err != nil {
		return desc, fmt.Errorf("cannot store archive entry %q: %w", name, err)
	}
	written, err := r.fill(ctx, w, name, desc, body)
	if err != nil {
		abortErr := r.store.Abort(context.WithoutCancel(ctx), ref)
		if errdefs.IsNotFound(abortErr) {
			abortErr = nil
		}
		err = errors.Join(err, abortErr)
	}
	return written, err
}

func (r *reader) fill(ctx context.Context, w content.Writer, name string, desc imagespec.Descriptor, body io.Reader) (_ imagespec.Descriptor, err error) {
	defer w.Close()
	if r.buffer == nil {
		r.buffer = make([]byte, bufferSize)
	}
	from := &reading{r: body}
	if _, err := io.CopyBuffer(onlyWriter{w}, from, r.buffer); err != nil {
		return desc, from.classify(name, err)
	}
	got := w.Digest()
	if desc.Digest != "" && got != desc.Digest {
		return desc, fmt.Errorf("archive entry %q has digest %s: %w", name, got, errs.Invalid)
	}
	desc.Digest = got
	if err := w.Commit(ctx, desc.Size, got); err != nil && !errdefs.IsAlreadyExists(err) {
		return desc, fmt.Errorf("cannot store archive entry %q: %w", name, err)
	}
	return desc, nil
}

// onlyWriter hides io.ReaderFrom, with which io.CopyBuffer would ignore its buffer, as reading
// hides io.WriterTo.
type onlyWriter struct{ io.Writer }

// reading records whether reading the archive failed.
type reading struct {
	r   io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// classify distinguishes a truncated or corrupt archive (Invalid) from a full disk.
func (r *reading) classify(name string, err error) error {
	if r.err != nil {
		return fmt.Errorf("archive entry %q is truncated or corrupt: %w: %w", name, err, errs.Invalid)
	}
	return fmt.Errorf("cannot store archive entry %q: %w", name, err)
}

// check reads body and compares its digest with the one in its name.
func check(name string, desc imagespec.Descriptor, body io.Reader) error {
	verifier := desc.Digest.Verifier()
	from := &reading{r: body}
	if _, err := io.Copy(verifier, from); err != nil {
		return from.classify(name, err)
	}
	if !verifier.Verified() {
		return fmt.Errorf("archive entry %q does not have the digest that its name says: %w", name, errs.Invalid)
	}
	return nil
}
