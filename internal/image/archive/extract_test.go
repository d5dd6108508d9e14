package archive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// sink is a target in memory. broken is the error of its writes.
type sink struct {
	left, got []byte
	committed bool
	leaves    int
	broken    error
}

func (m *sink) BeginDownload(context.Context, imagespec.Descriptor) (content.Writer, error) {
	if m.committed {
		return nil, errdefs.ErrAlreadyExists
	}
	m.got = bytes.Clone(m.left)
	return &sinkWriter{sink: m}, nil
}

func (m *sink) LeaveDownload(_ context.Context, _ imagespec.Descriptor, keep bool) error {
	if !keep {
		m.left = nil
	}
	m.leaves++
	return nil
}

type sinkWriter struct {
	content.Writer
	*sink
}

func (w *sinkWriter) Write(p []byte) (int, error) {
	if w.broken != nil {
		return 0, w.broken
	}
	w.got = append(w.got, p...)
	return len(p), nil
}

func (w *sinkWriter) Status() (content.Status, error) {
	return content.Status{Offset: int64(len(w.got))}, nil
}

func (w *sinkWriter) Truncate(size int64) error {
	w.got = w.got[:size]
	return nil
}

func (w *sinkWriter) Digest() digest.Digest { return digest.FromBytes(w.got) }
func (w *sinkWriter) Close() error          { return nil }

func (w *sinkWriter) Commit(context.Context, int64, digest.Digest, ...content.Opt) error {
	w.committed = true
	return nil
}

// TestExtract: each blob of an image comes out of both kinds of archives, also the manifest that one of docker save lacks.
// Files of the same size are not taken, and what an earlier download has left is replaced.
func TestExtract(t *testing.T) {
	spec := imagetest.Spec{Name: "app:1", Layers: []imagetest.Layer{
		{{Path: "a", Content: []byte("one")}}, {{Path: "a", Content: []byte("two")}}, // of the same size
	}}
	for form, write := range map[string]func(io.Writer, ...imagetest.Spec) error{"docker": imagetest.Archive, "oci": imagetest.OCIArchive} {
		var data bytes.Buffer
		if err := write(&data, spec); err != nil {
			t.Fatal(err)
		}
		store := newStore(t)
		found, err := Read(t.Context(), store, bytes.NewReader(data.Bytes()), Limits{Bytes: 1 << 30}, func(int64) {})
		if err != nil {
			t.Fatal(err)
		}
		blobs := map[digest.Digest]int64{}
		err = store.Walk(t.Context(), func(info content.Info) error {
			blobs[info.Digest] = info.Size
			return nil
		})
		if err != nil || len(blobs) != 4 || blobs[found[0].Target.Digest] == 0 {
			t.Fatalf("%s: %v, %v", form, blobs, err)
		}
		for blob, size := range blobs {
			to := &sink{left: []byte("of another download")}
			var written int64
			err := Extract(t.Context(), bytes.NewReader(data.Bytes()), imagespec.Descriptor{Digest: blob, Size: size}, to, func(n int64) { written += n })
			if err != nil || !to.committed || digest.FromBytes(to.got) != blob || written < size {
				t.Errorf("%s: %s: %d bytes, committed %v, %v", form, blob, len(to.got), to.committed, err)
			}
		}
		to := &sink{}
		other := imagespec.Descriptor{Digest: digest.FromString("other"), Size: found[0].Target.Size}
		if err := Extract(t.Context(), bytes.NewReader(data.Bytes()), other, to, func(int64) {}); !errors.Is(err, errs.NotFound) || to.committed {
			t.Errorf("%s: a blob of no image: %v", form, err)
		}
		if err := Extract(t.Context(), bytes.NewReader(data.Bytes()[:data.Len()/3]), other, to, func(int64) {}); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: a truncated archive: %v", form, err)
		}
		smaller := found[0].Target
		smaller.Size--
		to = &sink{}
		if err := Extract(t.Context(), bytes.NewReader(data.Bytes()), smaller, to, func(int64) {}); !errors.Is(err, errs.NotFound) || to.got != nil {
			t.Errorf("%s: a file with the name of the blob and another size: %v, %d bytes are written", form, err, len(to.got))
		}
		to = &sink{broken: errs.Exhausted}
		if err := Extract(t.Context(), bytes.NewReader(data.Bytes()), found[0].Target, to, func(int64) {}); !errors.Is(err, errs.Exhausted) || to.leaves != 1 {
			t.Errorf("%s: a full disk: %v, left %d times", form, err, to.leaves)
		}
	}
}
