package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob is a piece of content and what a manifest says of it.
type Blob struct {
	imagespec.Descriptor
	Data []byte
}

// Image is a built image: what a registry would hold.
type Image struct {
	Name             string
	Manifest, Config Blob
	Layers           []Blob
	// DiffIDs are the digests of the uncompressed layers.
	DiffIDs []digest.Digest
}

// ID is the image's id: the digest of its config.
func (i *Image) ID() string { return i.Config.Digest.String() }

// Build makes the blobs of an image.
func Build(spec Spec) (*Image, error) {
	layers := spec.Layers
	if len(spec.Files) > 0 {
		layers = append(append([]Layer{}, layers...), spec.Files)
	}
	img := &Image{Name: spec.Name}
	for i, layer := range layers {
		plain, err := Tar(layer)
		if err != nil {
			return nil, fmt.Errorf("cannot build layer %d of %q: %w", i, spec.Name, err)
		}
		data, mediaType, err := compress(plain, spec.Compression)
		if err != nil {
			return nil, fmt.Errorf("cannot compress layer %d of %q: %w", i, spec.Name, err)
		}
		img.DiffIDs = append(img.DiffIDs, digest.FromBytes(plain))
		img.Layers = append(img.Layers, NewBlob(mediaType, data))
	}
	config, err := json.Marshal(configOf(spec, img.DiffIDs))
	if err != nil {
		return nil, fmt.Errorf("cannot marshal the config of %q: %w", spec.Name, err)
	}
	img.Config = NewBlob(imagespec.MediaTypeImageConfig, config)
	return img, img.describe(spec.Annotations)
}

// describe makes the manifest of the image's blobs.
func (i *Image) describe(annotations map[string]string) error {
	manifest, err := json.Marshal(i.manifest(annotations))
	if err != nil {
		return fmt.Errorf("cannot marshal the manifest of %q: %w", i.Name, err)
	}
	i.Manifest = NewBlob(imagespec.MediaTypeImageManifest, manifest)
	return nil
}

// WithLayers returns an image with the same config, and so the same id, whose manifest has other blobs as layers. Nothing
// compares them with the config.
func (i *Image) WithLayers(layers ...Blob) (*Image, error) {
	other := *i
	other.Layers = layers
	return &other, other.describe(nil)
}

// NewBlob describes data.
func NewBlob(mediaType string, data []byte) Blob {
	return Blob{imagespec.Descriptor{
		MediaType: mediaType,
		Digest:    digest.FromBytes(data),
		Size:      int64(len(data)),
	}, data}
}

func (i *Image) manifest(annotations map[string]string) imagespec.Manifest {
	m := imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: imagespec.MediaTypeImageManifest,
		Config:    i.Config.Descriptor,
		Layers:    []imagespec.Descriptor{},

		Annotations: annotations,
	}
	for _, layer := range i.Layers {
		m.Layers = append(m.Layers, layer.Descriptor)
	}
	return m
}

func configOf(spec Spec, diffIDs []digest.Digest) imagespec.Image {
	created := spec.Created
	if created.IsZero() {
		created = time.Unix(0, 0)
	}
	created = created.UTC()
	config := imagespec.Image{
		Created: &created,
		Platform: imagespec.Platform{
			OS:           or(spec.OS, "linux"),
			Architecture: or(spec.Architecture, runtime.GOARCH),
			Variant:      spec.Variant,
		},
		Config: imagespec.ImageConfig{
			User:       spec.User,
			Env:        spec.Env,
			Entrypoint: spec.Entrypoint,
			Cmd:        spec.Cmd,
			WorkingDir: spec.WorkingDir,
			Labels:     spec.Labels,
			StopSignal: spec.StopSignal,
		},
		RootFS:  imagespec.RootFS{Type: "layers", DiffIDs: diffIDs},
		History: spec.History,
	}
	config.Config.Volumes = set(spec.Volumes)
	config.Config.ExposedPorts = set(spec.ExposedPorts)
	return config
}

// Tar makes the uncompressed tar stream of a layer.
func Tar(layer Layer) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{".": true, "/": true}
	for _, file := range layer {
		if !file.Raw {
			if err := writeParents(w, clean(file.Path), made); err != nil {
				return nil, err
			}
		}
		if err := writeFile(w, file, made); err != nil {
			return nil, fmt.Errorf("cannot write entry %q: %w", file.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func writeParents(w *tar.Writer, name string, made map[string]bool) error {
	dir := path.Dir(name)
	if made[dir] {
		return nil
	}
	if err := writeParents(w, dir, made); err != nil {
		return err
	}
	made[dir] = true
	return w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	})
}

func writeFile(w *tar.Writer, file File, made map[string]bool) error {
	content := file.Content
	if file.Source != "" {
		var err error
		if content, err = os.ReadFile(file.Source); err != nil {
			return err
		}
	}
	header := headerOf(file)
	if header.Typeflag == tar.TypeReg {
		header.Size = int64(len(content))
	}
	if header.Typeflag == tar.TypeDir {
		made[clean(file.Path)] = true
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := w.Write(content)
	return err
}

func headerOf(file File) *tar.Header {
	header := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     clean(file.Path),
		Mode:     file.Mode,
		Uid:      file.UID,
		Gid:      file.GID,
		ModTime:  time.Unix(0, 0),
		Format:   tar.FormatPAX,
	}
	if file.Raw {
		header.Name = file.Path
	}
	switch {
	case file.Dir:
		header.Typeflag = tar.TypeDir
		if !file.Raw {
			header.Name += "/"
		}
	case file.Symlink != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, file.Symlink
	case file.Hardlink != "":
		header.Typeflag, header.Linkname = tar.TypeLink, file.Hardlink
	case file.Device != 0:
		header.Typeflag = map[byte]byte{'c': tar.TypeChar, 'b': tar.TypeBlock, 'p': tar.TypeFifo}[file.Device]
		header.Devmajor, header.Devminor = file.Major, file.Minor
	}
	if header.Mode == 0 {
		header.Mode = 0o644
		if file.Dir {
			header.Mode = 0o755
		}
	}
	for name, value := range file.Xattrs {
		if header.PAXRecords == nil {
			header.PAXRecords = map[string]string{}
		}
		header.PAXRecords["SCHILY.xattr."+name] = value
	}
	return header
}

func compress(plain []byte, how string) ([]byte, string, error) {
	var buf bytes.Buffer
	var w io.WriteCloser
	mediaType := ""
	switch how {
	case "":
		return plain, imagespec.MediaTypeImageLayer, nil
	case "gzip":
		w, mediaType = gzip.NewWriter(&buf), imagespec.MediaTypeImageLayerGzip
	case "zstd":
		encoder, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, "", err
		}
		w, mediaType = encoder, imagespec.MediaTypeImageLayerZstd
	default:
		return nil, "", fmt.Errorf("unknown compression %q (want \"\", gzip or zstd)", how)
	}
	if _, err := w.Write(plain); err != nil {
		return nil, "", err
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	return buf.Bytes(), mediaType, nil
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func split(name string) (dir, base string) {
	dir, base = path.Split(clean(name))
	return dir, base
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func set(keys []string) map[string]struct{} {
	if len(keys) == 0 {
		return nil
	}
	m := map[string]struct{}{}
	for _, key := range keys {
		m[key] = struct{}{}
	}
	return m
}
