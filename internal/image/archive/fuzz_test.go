package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// FuzzRead: an archive with any entries is refused because of its own fault, or its images have
// names and are complete. A fuzzer that changes bytes would fail at tar's checksums. So the target
// creates the entries from lines: see archiveOf.
func FuzzRead(f *testing.F) {
	const config, layer = "f @.json {\"os\":\"linux\"}\n", "f l.tar x\n"
	for _, text := range []string{
		config + layer + "f manifest.json [{\"Config\":\"@0.json\",\"RepoTags\":[\"a:1\",\"r.example/b\"],\"Layers\":[\"l.tar\"]}]",
		layer + "s k/l ../l.tar\nf manifest.json [{\"Config\":\"l.tar\",\"Layers\":[\"k/l\",\"./l.tar\"]}]",
		"f oci-layout {\"imageLayoutVersion\":\"1.0.0\"}\nf blobs/sha256/@ {}\nd blobs\nf index.json {\"manifests\":[{\"digest\":\"sha256:@1\",\"size\":2,\"annotations\":{\"org.opencontainers.image.ref.name\":\"a:1\"}}]}",
		"f oci-layout {\"imageLayoutVersion\":\"2\"}\nf index.json {\"manifests\":[{}]}",
		"f blobs/sha256/" + strings.Repeat("0", 64) + " x\nf repositories {}\nf manifest.json []",
		"f manifest.json [{\"Config\":\"absent\"}]", "f ../out x", "s a /out", "h a b", "p fifo", "f manifest.json {", "",
	} {
		for form := range uint8(forms) {
			f.Add(form, text)
		}
	}
	f.Fuzz(func(t *testing.T, form uint8, text string) {
		store, found := readsOrBlames(t, archiveOf(t, form, text))
		if strings.Contains(text, imagespec.ImageLayoutFile) {
			return // the reader of the layout checks these manifests
		}
		for _, image := range found {
			store.checkManifest(t, image.Target)
		}
	})
}

// FuzzStream does the same with any bytes.
func FuzzStream(f *testing.F) {
	for _, write := range []func(io.Writer, ...imagetest.Spec) error{imagetest.Archive, imagetest.OCIArchive} {
		var plain bytes.Buffer
		if err := write(&plain, imagetest.Spec{Name: "a:1", Files: []imagetest.File{{Path: "f"}}}); err != nil {
			f.Fatal(err)
		}
		for form := range uint8(forms) {
			f.Add(wrapped(f, form, plain.Bytes()))
		}
	}
	for _, seed := range []string{"", "no archive", "\x1f\x8b", "\x28\xb5\x2f\xfd"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) { readsOrBlames(t, data) })
}

func readsOrBlames(t *testing.T, data []byte) (*memory, []Image) {
	t.Helper()
	store := &memory{blobs: map[digest.Digest][]byte{}, open: map[string]bool{}}
	found, err := Read(context.Background(), store, bytes.NewReader(data), Limits{Bytes: 1 << 20}, func(int64) {})
	if len(store.open) != 0 {
		t.Errorf("writers are left: %v", store.open)
	}
	if err != nil {
		if !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Exhausted) {
			t.Errorf("%v blames nobody", err)
		}
		return store, nil
	}
	if len(found) == 0 {
		t.Error("neither images nor an error")
	}
	for _, image := range found {
		for _, name := range image.Names {
			if again, err := reference.ParseDockerRef(name.String()); err != nil || again.String() != name.String() {
				t.Errorf("the name %q is read again as %v, %v", name, again, err)
			}
		}
	}
	for name, data := range store.blobs {
		if digest.FromBytes(data) != name {
			t.Errorf("blob %s is another one", name)
		}
	}
	return store, found
}

// forms are the ways to compress an archive.
const forms = 4

// wrapped compresses an archive, or truncates it.
func wrapped(t testing.TB, form uint8, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch form % forms {
	case 0:
		return plain
	case 1:
		return plain[:len(plain)/2]
	case 2:
		w, err = gzip.NewWriterLevel(&b, gzip.NoCompression)
	case 3:
		w, err = zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(zstd.MinWindowSize))
	}
	if err == nil {
		_, err = w.Write(plain)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// archiveOf creates an archive with an entry for each line. A line has a letter for the type, the
// name, and the content or the link target. In a name, @ stands for the digest of the content. In a
// content, @ and a digit stand for the digest of an earlier line's content.
func archiveOf(t *testing.T, form uint8, text string) []byte {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	var sums []string
	for line := range strings.SplitSeq(text, "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		name, content, _ := strings.Cut(rest, " ")
		for i, sum := range sums {
			content = strings.ReplaceAll(content, "@"+strconv.Itoa(i), sum)
		}
		sum := digest.FromString(content).Encoded()
		if len(sums) < 10 {
			sums = append(sums, sum)
		}
		header := &tar.Header{Name: strings.ReplaceAll(name, "@", sum), Mode: 0o644, Format: tar.FormatPAX}
		switch kind {
		case "f":
			header.Typeflag, header.Size = tar.TypeReg, int64(len(content))
		case "d":
			header.Typeflag = tar.TypeDir
		case "s":
			header.Typeflag, header.Linkname = tar.TypeSymlink, content
		case "h":
			header.Typeflag, header.Linkname = tar.TypeLink, content
		default:
			header.Typeflag = tar.TypeFifo
		}
		if w.WriteHeader(header) != nil {
			return nil // tar cannot encode it
		}
		if header.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return wrapped(t, form, plain.Bytes())
}

// memory is a content store in memory. On a disk, syncs would take most of the time.
type memory struct {
	content.Store
	blobs map[digest.Digest][]byte
	open  map[string]bool
}

// checkManifest checks that an imported manifest, and everything that it names, exists.
func (m *memory) checkManifest(t *testing.T, target imagespec.Descriptor) {
	t.Helper()
	var manifest imagespec.Manifest
	if err := json.Unmarshal(m.blobs[target.Digest], &manifest); err != nil {
		t.Fatalf("the manifest %s: %v", target.Digest, err)
	}
	for _, desc := range append(manifest.Layers, manifest.Config, target) {
		if data, ok := m.blobs[desc.Digest]; !ok || int64(len(data)) != desc.Size {
			t.Errorf("%s of %d bytes is not there: %d bytes", desc.Digest, desc.Size, len(data))
		}
	}
}

func (m *memory) Writer(_ context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if _, ok := m.blobs[o.Desc.Digest]; ok {
		return nil, fmt.Errorf("blob %s: %w", o.Desc.Digest, errdefs.ErrAlreadyExists)
	}
	m.open[o.Ref] = true
	return &memoryWriter{store: m, ref: o.Ref}, nil
}

func (m *memory) Abort(_ context.Context, ref string) error {
	if !m.open[ref] {
		return errdefs.ErrNotFound
	}
	delete(m.open, ref)
	return nil
}

func (m *memory) ReaderAt(_ context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	data, ok := m.blobs[desc.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return memoryReader{bytes.NewReader(data)}, nil
}

type memoryReader struct{ *bytes.Reader }

func (memoryReader) Close() error { return nil }

type memoryWriter struct {
	bytes.Buffer
	store *memory
	ref   string
}

func (w *memoryWriter) Close() error { return nil }

func (w *memoryWriter) Digest() digest.Digest { return digest.FromBytes(w.Bytes()) }

func (w *memoryWriter) Status() (content.Status, error) {
	return content.Status{Ref: w.ref, Offset: int64(w.Len()), UpdatedAt: time.Now()}, nil
}

func (w *memoryWriter) Truncate(int64) error { return errdefs.ErrNotImplemented }

// Commit refuses the same content as the local store.
func (w *memoryWriter) Commit(_ context.Context, size int64, expected digest.Digest, _ ...content.Opt) error {
	defer delete(w.store.open, w.ref)
	if size > 0 && size != int64(w.Len()) {
		return fmt.Errorf("%d bytes, want %d: %w", w.Len(), size, errdefs.ErrFailedPrecondition)
	}
	if expected != "" && expected != w.Digest() {
		return fmt.Errorf("digest %s, want %s: %w", w.Digest(), expected, errdefs.ErrFailedPrecondition)
	}
	if _, ok := w.store.blobs[w.Digest()]; ok {
		return fmt.Errorf("blob %s: %w", w.Digest(), errdefs.ErrAlreadyExists)
	}
	w.store.blobs[w.Digest()] = bytes.Clone(w.Bytes())
	return nil
}
