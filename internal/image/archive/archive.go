// Package archive reads image archives, as docker save, podman save, skopeo and
// OCI layouts in a tar stream have them, into a content store.
//
// The archive is only a stream: the package stores blobs as they come, under digests
// that it computes, and interprets them at the end of the stream. Names in the archive
// are keys of a map and never paths of this host.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/distribution/reference"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
)

// Limits of an archive.
type Limits struct {
	// Bytes is how much may be stored.
	Bytes int64
}

const (
	// maxDocument bounds what is held in memory: manifest.json and index.json.
	maxDocument = 8 << 20
	// maxEntries bounds the entries of an archive, its images and their names. maxName bounds one name of an entry, or the
	// target of a link, in bytes, as Linux bounds a path; maxNames bounds all of them together, which are held in memory.
	maxEntries = 100_000
	maxName    = 4096
	maxNames   = 32 << 20
	// maxBlob is more than any layer has; a header with more is wrong.
	maxBlob = 1 << 40
	// bufferSize is how much is read and written at a time.
	bufferSize = 256 << 10
	// maxWindow bounds the window of a zstd stream, in bytes of memory.
	maxWindow = 128 << 20

	dockerManifest = "manifest.json"
)

// Image is one image of an archive.
type Image struct {
	// Names are its full references; none for an image without one.
	Names []reference.Named
	// Target describes its manifest or index, which the store has.
	Target imagespec.Descriptor
}

// String names the image in messages.
func (i Image) String() string {
	if len(i.Names) > 0 {
		return i.Names[0].String()
	}
	return i.Target.Digest.String()
}

// NameAll gives the one image without a name the fallback, if that is not nil. Invalid when
// several have none.
func NameAll(found []Image, fallback reference.Named) error {
	nameless := 0
	for i := range found {
		if len(found[i].Names) > 0 {
			continue
		}
		nameless++
		if fallback != nil {
			found[i].Names = []reference.Named{fallback}
		}
	}
	if nameless > 1 && fallback != nil {
		return fmt.Errorf("the archive has %d images without a name, %s names one: %w", nameless, fallback, errs.Invalid)
	}
	return nil
}

// reader is an archive being read.
type reader struct {
	store  content.Store
	limits Limits
	got    func(int64)

	// blobs are the regular files by cleaned name, links the symbolic links.
	blobs map[string]imagespec.Descriptor
	links map[string]string
	// documents are the small files that say what the blobs are.
	documents map[string][]byte
	entries   int
	// named is the length of all names in blobs and links.
	named  int
	stored int64
	// buffer is for copying.
	buffer []byte
}

// Read stores all blobs of the archive and returns its images. The context has a
// lease that keeps what is stored; after an error the caller drops it. got is
// called with the bytes of each read. Kinds: Invalid for a bad archive, Exhausted for
// one that is larger than limits.
func Read(ctx context.Context, store content.Store, stream io.Reader, limits Limits, got func(int64)) ([]Image, error) {
	r := &reader{
		store: store, limits: limits, got: got,
		blobs:     map[string]imagespec.Descriptor{},
		links:     map[string]string{},
		documents: map[string][]byte{},
	}
	source := &source{r: stream, got: got, ended: func() error { return context.Cause(ctx) }}
	plain, err := decompress(source)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	if err := r.readAll(ctx, plain); err != nil {
		if source.err != nil {
			// The caller's stream failed; the archive is not at fault.
			return nil, fmt.Errorf("cannot read the stream: %w", source.err)
		}
		return nil, err
	}
	if _, ok := r.documents[imagespec.ImageLayoutFile]; ok && r.documents[imagespec.ImageIndexFile] != nil {
		return Layout(r.documents[imagespec.ImageLayoutFile], r.documents[imagespec.ImageIndexFile])
	}
	if r.documents[dockerManifest] != nil {
		return r.docker(ctx)
	}
	return nil, fmt.Errorf("the archive has neither manifest.json (docker) nor oci-layout and index.json (OCI): %w", errs.Invalid)
}

// source records the error of the stream itself, and ends with the context.
type source struct {
	r   io.Reader
	got func(int64)
	// ended returns why the caller has cancelled the import, or nil.
	ended func() error
	err   error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err = s.ended(); s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.got(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// decompress detects gzip, zstd and plain archives by their first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, bufferSize)
	magic, err := buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read the stream: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		gz, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("cannot read the archive's gzip header: %w: %w", err, errs.Invalid)
		}
		return gz, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("cannot read the archive as zstd: %w: %w", err, errs.Invalid)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}

func (r *reader) readAll(ctx context.Context, plain io.Reader) error {
	t := tar.NewReader(plain)
	for {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive is truncated or no tar archive: %w: %w", err, errs.Invalid)
		}
		if err := r.entry(ctx, header, t); err != nil {
			return err
		}
	}
}

func (r *reader) entry(ctx context.Context, header *tar.Header, body io.Reader) error {
	if r.entries++; r.entries > maxEntries {
		return fmt.Errorf("the archive has more than %d entries: %w", maxEntries, errs.Invalid)
	}
	if longest := max(len(header.Name), len(header.Linkname)); longest > maxName {
		return fmt.Errorf("archive entry %.100q... has a name, or the target of a link, of %d bytes, at most %d are taken: %w", header.Name, longest, maxName, errs.Invalid)
	}
	name, err := cleanName(header.Name)
	if err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeSymlink:
		// Old docker archives share layers by links; only their text counts.
		target, err := cleanName(path.Join(path.Dir(name), header.Linkname))
		if err != nil {
			return err
		}
		r.links[name] = target
		return r.count(name, target)
	case tar.TypeReg:
	case tar.TypeDir:
		return nil
	default:
		return fmt.Errorf("archive entry %q is neither a file, a directory nor a symbolic link: %w", header.Name, errs.Invalid)
	}
	if header.Size > maxBlob {
		return fmt.Errorf("archive entry %q claims %d bytes: %w", header.Name, header.Size, errs.Invalid)
	}
	switch name {
	case imagespec.ImageLayoutFile, imagespec.ImageIndexFile, dockerManifest:
		return r.document(name, header.Size, body)
	case "repositories":
		// The oldest docker format's list of tags, which manifest.json repeats.
		return nil
	}
	if err := r.count(name); err != nil {
		return err
	}
	return r.blob(ctx, name, header.Size, body)
}

// count adds names that are held in memory.
func (r *reader) count(names ...string) error {
	for _, name := range names {
		r.named += len(name)
	}
	if r.named > maxNames {
		return fmt.Errorf("the names in the archive have more than %d bytes together: %w", maxNames, errs.Invalid)
	}
	return nil
}

// cleanName normalizes an entry's name and refuses one that leaves the archive's root.
func cleanName(name string) (string, error) {
	cleaned := path.Clean(name)
	if path.IsAbs(cleaned) || cleaned == ".." || strings.HasPrefix(cleaned, "../") {
		return "", fmt.Errorf("archive entry %q leads out of the archive: %w", name, errs.Invalid)
	}
	return cleaned, nil
}

func (r *reader) document(name string, size int64, body io.Reader) error {
	if size > maxDocument {
		return fmt.Errorf("archive entry %q has %d bytes, at most %d are read: %w", name, size, maxDocument, errs.Invalid)
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("archive entry %q is truncated: %w: %w", name, err, errs.Invalid)
	}
	if !json.Valid(data) {
		return fmt.Errorf("archive entry %q is no JSON: %w", name, errs.Invalid)
	}
	if err := tree.CheckElements(data); err != nil {
		return fmt.Errorf("archive entry %q %w", name, err)
	}
	if err := tree.CheckKeys(data); err != nil {
		return fmt.Errorf("archive entry %q %w", name, err)
	}
	if r.documents[name] != nil {
		return fmt.Errorf("archive entry %q is there twice: %w", name, errs.Invalid)
	}
	r.documents[name] = data
	return nil
}

var hexName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// digestInName returns the digest in a blob's name, "" if the name has none.
func digestInName(name string) digest.Digest {
	dir, base := path.Split(name)
	switch {
	case dir == "blobs/sha256/" && hexName.MatchString(base):
		return digest.NewDigestFromEncoded(digest.SHA256, base)
	case dir == "" && strings.HasSuffix(base, ".json") && hexName.MatchString(strings.TrimSuffix(base, ".json")):
		return digest.NewDigestFromEncoded(digest.SHA256, strings.TrimSuffix(base, ".json"))
	}
	return ""
}
