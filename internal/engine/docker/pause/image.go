// Package pause has the image of pause containers. The program of a pause container holds the
// namespaces of a pod, and is the init of the PID namespace that the pod's containers may share:
// it reaps what they orphan, and ends with status 0 at SIGTERM and SIGINT.
//
// berth makes program and image itself, out of a list of instructions. No registry is needed.
package pause

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/engine/docker/labels"
)

// Reference is the name of the image in an engine. Its tag changes with its content, so that
// two versions of berth do not replace each other's image. A host of .invalid never exists
// (RFC 6761): a tool that pulls the images of all containers cannot get another one by this name.
const Reference = "berth.invalid/pause:1"

const (
	// entrypoint is the path of the program in the image.
	entrypoint = "/pause"
	// user is neither root nor a user of any other image, as in Kubernetes' own pause image. It
	// holds where the pod has no run_as_user.
	user = "65535:65535"
)

// Archive returns the image for the architecture of this host as a tar archive, for engines of
// both kinds: it is a docker archive for those that store layers, and an OCI layout for those that
// store manifests. It has the same bytes whenever it is made. The error is Unsupported on an
// architecture without a program.
func Archive() ([]byte, error) {
	img, err := build(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return img.archive()
}

// image is the image of one architecture. Digests of its documents are its ids.
type image struct {
	layer, config, manifest []byte
	// descriptor is the manifest's.
	descriptor imagespec.Descriptor
}

func build(architecture string) (*image, error) {
	executable, err := program(architecture)
	if err != nil {
		return nil, err
	}
	platform := imagespec.Platform{OS: "linux", Architecture: architecture}
	img := &image{}
	img.layer, err = writeTar(file{name: path.Base(entrypoint), mode: 0o555, content: executable})
	if err != nil {
		return nil, err
	}
	if img.config, err = encode(config(platform, digest.FromBytes(img.layer))); err != nil {
		return nil, err
	}
	img.manifest, err = encode(imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: imagespec.MediaTypeImageManifest,
		Config:    describe(imagespec.MediaTypeImageConfig, img.config),
		Layers:    []imagespec.Descriptor{describe(imagespec.MediaTypeImageLayer, img.layer)},
	})
	if err != nil {
		return nil, err
	}
	img.descriptor = describe(imagespec.MediaTypeImageManifest, img.manifest)
	img.descriptor.Platform = &platform
	img.descriptor.Annotations = map[string]string{"io.containerd.image.name": Reference}
	return img, nil
}

// config returns the configuration of the image, whose labels the engine adds to those of its
// containers.
func config(platform imagespec.Platform, layer digest.Digest) imagespec.Image {
	created := time.Unix(0, 0).UTC()
	return imagespec.Image{
		Created:  &created,
		Platform: platform,
		Config: imagespec.ImageConfig{
			User:       user,
			Entrypoint: []string{entrypoint},
			Labels:     map[string]string{labels.Image: labels.ImagePause},
			StopSignal: "SIGTERM",
		},
		RootFS:  imagespec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layer}},
		History: []imagespec.History{{Created: &created, CreatedBy: "berth"}},
	}
}

// hasID reports whether id is how an engine calls the image: the digest of its configuration,
// or of its manifest.
func (img *image) hasID(id string) bool {
	return id == digest.FromBytes(img.config).String() || id == img.descriptor.Digest.String()
}

// archive writes the image in both formats, which share the blobs.
func (img *image) archive() ([]byte, error) {
	layout, err := encode(imagespec.ImageLayout{Version: imagespec.ImageLayoutVersion})
	if err != nil {
		return nil, err
	}
	index, err := encode(imagespec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: imagespec.MediaTypeImageIndex,
		Manifests: []imagespec.Descriptor{img.descriptor},
	})
	if err != nil {
		return nil, err
	}
	docker, err := encode([]map[string]any{{
		"Config": blob(img.config), "RepoTags": []string{Reference}, "Layers": []string{blob(img.layer)},
	}})
	if err != nil {
		return nil, err
	}
	return writeTar(
		file{name: imagespec.ImageLayoutFile, mode: 0o444, content: layout},
		file{name: blob(img.layer), mode: 0o444, content: img.layer},
		file{name: blob(img.config), mode: 0o444, content: img.config},
		file{name: blob(img.manifest), mode: 0o444, content: img.manifest},
		file{name: imagespec.ImageIndexFile, mode: 0o444, content: index},
		file{name: "manifest.json", mode: 0o444, content: docker},
	)
}

// blob returns the path of a blob in the archive.
func blob(content []byte) string {
	d := digest.FromBytes(content)
	return path.Join(imagespec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

func describe(mediaType string, content []byte) imagespec.Descriptor {
	return imagespec.Descriptor{
		MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content)),
	}
}

func encode(document any) ([]byte, error) {
	data, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the pause image: %w", err)
	}
	return data, nil
}

// file is a file of root's in a tar archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

func writeTar(files ...file) ([]byte, error) {
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	for _, f := range files {
		err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)),
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		})
		if err == nil {
			_, err = io.Copy(w, bytes.NewReader(f.content))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot write %s of the pause image: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("cannot write the pause image: %w", err)
	}
	return data.Bytes(), nil
}
