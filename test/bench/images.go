package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// The images that are pulled have the content of this machine's programs and source code, because the speed of an inflater
// depends on it: random bytes are stored and not compressed, and repeated text needs few instructions. As in images of
// languages and their packages, two thirds of the bytes are programs and libraries, and most files are small.

// layerSpec says what a layer has.
type layerSpec struct {
	// name is the directory of its files.
	name string
	// bytes are those of its files. from is where the content of the first file begins.
	bytes, from int64
	compression string
}

// storedLayer is a layer that a registry has.
type storedLayer struct {
	desc   imagespec.Descriptor
	diffID digest.Digest
}

// material is the content of files: programs, which are cut into files, and source code.
type material struct {
	programs []byte
	sources  [][]byte
}

// readMaterial reads the programs of a directory, and Go's source code.
func readMaterial(ctx context.Context, bin string) (*material, error) {
	m := &material{}
	for _, name := range []string{"containerd", "dockerd", "runc", "containerd-shim-runc-v2"} {
		data, err := os.ReadFile(filepath.Join(bin, name))
		if err != nil {
			return nil, err
		}
		m.programs = append(m.programs, data...)
	}
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot find Go's source code: %w", err)
	}
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(root)), "src"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".go" {
			return err
		}
		data, err := os.ReadFile(path)
		m.sources = append(m.sources, data)
		return err
	})
	if err == nil && len(m.sources) == 0 {
		err = fmt.Errorf("%s has no source code", root)
	}
	return m, err
}

// file returns the content of the i-th file of a layer: each 50th is a program or library, of 64 KiB to 2 MiB.
func (m *material) file(i int, from int64) []byte {
	if i%50 != 0 {
		return m.sources[(i+int(from>>14))%len(m.sources)]
	}
	size := 64 << 10 << (i / 50 % 6)
	at := (int(from) + i/50*(700<<10)) % (len(m.programs) - size)
	return m.programs[at : at+size]
}

// filesInDir is how many files a directory of a layer has.
const filesInDir = 40

// writeTo writes the archive of a layer.
func (m *material) writeTo(w io.Writer, spec layerSpec) error {
	archive := tar.NewWriter(w)
	dir := func(name string) error {
		return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: time.Unix(0, 0)})
	}
	if err := dir(spec.name); err != nil {
		return err
	}
	var written int64
	for i := 0; written < spec.bytes; i++ {
		parent := fmt.Sprintf("%s/%04d", spec.name, i/filesInDir)
		if i%filesInDir == 0 {
			if err := dir(parent); err != nil {
				return err
			}
		}
		content := m.file(i, spec.from)
		content = content[:min(int64(len(content)), spec.bytes-written)]
		err := archive.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s/file%d", parent, i), Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0),
		})
		if err != nil {
			return err
		}
		if _, err := archive.Write(content); err != nil {
			return err
		}
		written += int64(len(content))
	}
	return archive.Close()
}

// store writes the blob of a layer.
func (d blobDir) store(m *material, spec layerSpec) (layer storedLayer, err error) {
	f, err := os.CreateTemp(filepath.Join(string(d), "blobs"), "new-")
	if err != nil {
		return layer, err
	}
	defer f.Close()
	blob, plain := digest.Canonical.Digester(), digest.Canonical.Digester()
	out := bufio.NewWriterSize(io.MultiWriter(f, blob.Hash()), 1<<20)
	compressor, mediaType, err := compressorOf(out, spec.compression)
	if err != nil {
		return layer, err
	}
	in := bufio.NewWriterSize(io.MultiWriter(compressor, plain.Hash()), 1<<20)
	if err := m.writeTo(in, spec); err != nil {
		return layer, err
	}
	if err := errors.Join(in.Flush(), compressor.Close(), out.Flush()); err != nil {
		return layer, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return layer, err
	}
	layer = storedLayer{imagespec.Descriptor{MediaType: mediaType, Digest: blob.Digest(), Size: size}, plain.Digest()}
	return layer, os.Rename(f.Name(), d.blob(layer.desc.Digest))
}

// compressorOf compresses as image builders do: gzip by Go's library at its default level.
func compressorOf(w io.Writer, compression string) (io.WriteCloser, string, error) {
	if compression == "zstd" {
		encoder, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		return encoder, imagespec.MediaTypeImageLayerZstd, err
	}
	return gzip.NewWriter(w), imagespec.MediaTypeImageLayerGzip, nil
}

// storeAll writes the blobs of layers, as many at a time as there are CPUs.
func (d blobDir) storeAll(ctx context.Context, m *material, specs []layerSpec) ([]storedLayer, error) {
	layers := make([]storedLayer, len(specs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for i, spec := range specs {
		group.Go(func() (err error) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			layers[i], err = d.store(m, spec)
			return err
		})
	}
	return layers, group.Wait()
}

// storeImage writes the config and the manifest of an image.
func (d blobDir) storeImage(tag string, layers ...storedLayer) error {
	image := imagespec.Image{Platform: imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	image.RootFS.Type = "layers"
	image.Config.Labels = map[string]string{"tag": tag} // each image has an id of its own
	manifest := imagespec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest}
	for _, layer := range layers {
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, layer.diffID)
		manifest.Layers = append(manifest.Layers, layer.desc)
	}
	config, err := json.Marshal(image)
	if err != nil {
		return err
	}
	blob := imagetest.NewBlob(imagespec.MediaTypeImageConfig, config)
	manifest.Config = blob.Descriptor
	if err := d.put(blob); err != nil {
		return err
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	blob = imagetest.NewBlob(imagespec.MediaTypeImageManifest, data)
	return errors.Join(d.put(blob), d.tag(tag, blob.Descriptor))
}

// sizeOf is the number of bytes in an image's layers as they are transferred.
func (d blobDir) sizeOf(tags ...string) (bytes int64, err error) {
	seen := map[digest.Digest]bool{}
	for _, tag := range tags {
		manifest, err := d.manifest(tag)
		if err != nil {
			return 0, err
		}
		for _, layer := range manifest.Layers {
			if !seen[layer.Digest] {
				bytes += layer.Size
			}
			seen[layer.Digest] = true
		}
	}
	return bytes, nil
}
