// Package imagefile reads archives of images, as docker and OCI tools write them, and writes them
// again without what the receiver has already. It knows no cluster and no engine.
//
// A docker archive names its layers by files, and has no manifest. The package generates one, as
// berth's and containerd's importers do, and turns the archive into an OCI layout, which names
// layers by digest and may lack some. The manifest names the receiver's own content of a layer if
// it unpacks to the same, however it is compressed. An OCI layout has manifests: a layer is left
// out if the receiver has exactly that content.
package imagefile

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// maxDocument bounds files that are read into memory, in bytes: manifests, indexes,
	// configurations.
	maxDocument = 8 << 20
	// maxEntries and maxLayers are more than any archive or image has.
	maxEntries = 100_000
	maxLayers  = 500
	// maxDepth bounds indexes in indexes.
	maxDepth = 4
	// maxWindow bounds the memory of a zstd stream, in bytes.
	maxWindow = 128 << 20

	dockerManifest = "manifest.json"
	blobsDir       = "blobs/"
)

// Image is one image of an archive.
type Image struct {
	// ID is the digest of its configuration; "" if the archive has the image for several platforms.
	ID string
	// Names are its full references.
	Names []string
}

// File is an archive on disk. Its entries are read where they are.
type File struct {
	Images []Image

	file    *os.File
	dir     string // for copies
	names   []string
	entries map[string]entry
	links   map[string]string
	// layers are the digests of an OCI layout's layers.
	layers map[digest.Digest]bool
	// walked are the IDs that its indexes and manifests lead to.
	walked map[digest.Digest][]string
	// docker are the images of a docker archive; nil for an OCI layout.
	docker []dockerImage
}

// entry is the position of a file in the archive.
type entry struct{ offset, size int64 }

// Open reads the tables of an archive. It unpacks a compressed archive into a copy without a name,
// in dir. errs.Invalid: it is not an archive, or contradicts its own tables.
func Open(name, dir string) (*File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	f := &File{file: file, dir: dir, entries: map[string]entry{}, links: map[string]string{}, layers: map[digest.Digest]bool{}, walked: map[digest.Digest][]string{}}
	if err := f.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the archive %s: %w", name, err), f.Close())
	}
	return f, nil
}

// Close closes the archive, and removes the copy that Open unpacked.
func (f *File) Close() error { return f.file.Close() }

func (f *File) open() error {
	if err := f.plain(); err != nil {
		return err
	}
	if err := f.index(); err != nil {
		return err
	}
	_, isLayout := f.entries[imagespec.ImageLayoutFile]
	_, hasIndex := f.entries[imagespec.ImageIndexFile]
	_, isDocker := f.entries[dockerManifest]
	switch {
	case isLayout && hasIndex:
		return f.readLayout()
	case isDocker:
		return f.readDocker()
	}
	return fmt.Errorf("it has neither manifest.json (docker) nor oci-layout and index.json (OCI): %w", errs.Invalid)
}

// plain replaces a compressed archive by an unpacked copy: a compressed one has no random access.
func (f *File) plain() error {
	head := bufio.NewReader(f.file)
	magic, err := head.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var from io.Reader
	switch {
	case bytes.HasPrefix(magic, gzipMagic()):
		if from, err = gzip.NewReader(head); err != nil {
			return fmt.Errorf("its gzip header: %w: %w", errs.Invalid, err)
		}
	case bytes.Equal(magic, zstdMagic()):
		decoder, err := zstd.NewReader(head, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return fmt.Errorf("its zstd header: %w: %w", errs.Invalid, err)
		}
		defer decoder.Close()
		from = decoder
	default:
		_, err := f.file.Seek(0, io.SeekStart)
		return err
	}
	copied, err := os.CreateTemp(f.dir, "berth-images-*.tar")
	if err != nil {
		return fmt.Errorf("cannot make a file for what it unpacks to: %w", err)
	}
	compressed := f.file
	f.file = copied
	if err := os.Remove(copied.Name()); err != nil {
		return errors.Join(err, compressed.Close())
	}
	if _, err := io.Copy(copied, from); err != nil {
		err = fmt.Errorf("cannot unpack it: %w", blame(err))
		return errors.Join(err, compressed.Close())
	}
	_, err = copied.Seek(0, io.SeekStart)
	return errors.Join(err, compressed.Close())
}

// blame distinguishes a full disk from an invalid stream.
func blame(err error) error {
	if errors.As(err, new(*fs.PathError)) {
		return err
	}
	return fmt.Errorf("%w: %w", errs.Invalid, err)
}

func gzipMagic() []byte { return []byte{0x1f, 0x8b} }
func zstdMagic() []byte { return []byte{0x28, 0xb5, 0x2f, 0xfd} }

// index records the position of each file.
func (f *File) index() error {
	// Without a buffer: tar seeks from header to header.
	for r := tar.NewReader(f.file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is truncated or no tar archive: %w: %w", errs.Invalid, err)
		}
		if len(f.entries)+len(f.links) >= maxEntries {
			return fmt.Errorf("it has more than %d entries: %w", maxEntries, errs.Invalid)
		}
		name := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeSymlink:
			f.links[name] = path.Join(path.Dir(name), header.Linkname)
		case tar.TypeReg:
			at, err := f.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			if _, double := f.entries[name]; !double {
				f.names = append(f.names, name)
			}
			f.entries[name] = entry{at, header.Size}
		case tar.TypeDir:
		default:
			return fmt.Errorf("entry %q is neither a file, a directory nor a symbolic link: %w", header.Name, errs.Invalid)
		}
	}
}

// lookup finds a file, through at most one link, by which old dockers share layers.
func (f *File) lookup(name string) (entry, error) {
	name = path.Clean(name)
	if target, ok := f.links[name]; ok {
		name = target
	}
	e, ok := f.entries[name]
	if !ok {
		return e, fmt.Errorf("it has no %q, which it names: %w", name, errs.Invalid)
	}
	return e, nil
}

// section reads an entry.
func (f *File) section(e entry) *io.SectionReader {
	return io.NewSectionReader(f.file, e.offset, e.size)
}

// document reads a small file whole.
func (f *File) document(name string) ([]byte, error) {
	e, err := f.lookup(name)
	if err != nil {
		return nil, err
	}
	if e.size > maxDocument {
		return nil, fmt.Errorf("entry %q has %d bytes, at most %d are read: %w", name, e.size, maxDocument, errs.Invalid)
	}
	text := make([]byte, e.size)
	if _, err := io.ReadFull(f.section(e), text); err != nil {
		return nil, fmt.Errorf("entry %q: %w: %w", name, errs.Invalid, err)
	}
	return text, nil
}

// decode reads a small file of JSON.
func (f *File) decode(name string, into any) error {
	text, err := f.document(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("entry %q: %w: %w", name, errs.Invalid, err)
	}
	return nil
}

// blobName is the path of a blob in an OCI layout.
func blobName(d digest.Digest) string { return blobsDir + d.Algorithm().String() + "/" + d.Encoded() }

// digestOf is the digest in the name of a blob; "" if it has none.
func digestOf(name string) digest.Digest {
	algorithm, encoded, ok := strings.Cut(strings.TrimPrefix(name, blobsDir), "/")
	if !ok || !strings.HasPrefix(name, blobsDir) {
		return ""
	}
	d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm), encoded)
	if d.Validate() != nil {
		return ""
	}
	return d
}

// addName adds a name once.
func (i *Image) addName(name string) {
	if name != "" && !slices.Contains(i.Names, name) {
		i.Names = append(i.Names, name)
	}
}
