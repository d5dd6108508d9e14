package imagefile

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Has is the content that a receiver has already.
type Has struct {
	// Blobs is content by its digest.
	Blobs map[digest.Digest]bool
	// Layers are descriptors of the receiver's content by the digest of the unpacked content.
	Layers map[digest.Digest]imagespec.Descriptor
}

// Sent counts the layers that were sent and left out, and their bytes.
type Sent struct {
	Layers, Spared         int
	LayerBytes, SpareBytes int64
}

// Write writes the archive without what the receiver has.
func (f *File) Write(to io.Writer, has Has) (Sent, error) {
	w := &writer{tar: tar.NewWriter(to), seen: map[string]bool{}}
	write := f.writeLayout
	if f.docker != nil {
		write = f.writeDocker
	}
	err := write(w, has)
	if err == nil {
		err = w.tar.Close()
	}
	if err != nil {
		return w.sent, fmt.Errorf("cannot write images: %w", err)
	}
	return w.sent, nil
}

// writer writes each name once.
type writer struct {
	tar  *tar.Writer
	seen map[string]bool
	sent Sent
}

func (w *writer) first(name string) bool {
	known := w.seen[name]
	w.seen[name] = true
	return !known
}

func (w *writer) copy(name string, from *io.SectionReader) error {
	if !w.first(name) {
		return nil
	}
	return w.file(name, from.Size(), from)
}

func (w *writer) file(name string, size int64, from io.Reader) error {
	if err := w.tar.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := io.Copy(w.tar, from)
	return err
}

func (w *writer) document(name string, text []byte) error {
	if !w.first(name) {
		return nil
	}
	return w.file(name, int64(len(text)), bytes.NewReader(text))
}

func (w *writer) json(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.document(name, text)
}

func (w *writer) layer(name string, from *io.SectionReader) error {
	if !w.first(name) {
		return nil
	}
	w.sent.Layers++
	w.sent.LayerBytes += from.Size()
	return w.file(name, from.Size(), from)
}

// skip counts a layer that is left out.
func (w *writer) skip(name string, size int64) {
	if w.first(name) {
		w.sent.Spared++
		w.sent.SpareBytes += size
	}
}
