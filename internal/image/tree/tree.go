// Package tree reads an image, or an OCI artifact, from content: from what its name points to, by
// way of indexes, to the manifest, config and layers of a platform, which is this node's or a handler's. It checks what it
// reads, and writes nothing.
package tree

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
)

const (
	// MaxDocument bounds manifests, indexes and configs, which are held in memory.
	MaxDocument = 8 << 20
	// MaxElements bounds the elements of a document, by its commas. A list of descriptors takes 2 bytes for each in the
	// document, and more than 100 in memory.
	MaxElements = 200_000
	// maxIndexDepth bounds indexes in indexes.
	maxIndexDepth = 4
	// MaxLayers bounds the layers of one image.
	MaxLayers = 500
	// maxAnnotations bounds an image's annotations, in bytes: a list of all images is
	// one message.
	maxAnnotations = 16 << 10
	// maxLayer is more than any layer has; with MaxLayers their sum is a number, too.
	maxLayer = 1 << 40
)

// Tree is an image as content has it: from what its name points to down to the
// layers of this node's platform.
type Tree struct {
	// Target is what the name points to: an index, or the manifest itself.
	Target imagespec.Descriptor
	// Indexes lead from Target to Manifest.
	Indexes []imagespec.Descriptor
	// Platform is the one that the image was chosen for, if that is not the node's; see image.ParsePlatform. Then Target is the
	// manifest: the store keeps the indexes for the image of the node's platform alone. Through are those that led to it.
	Platform string
	Through  []imagespec.Descriptor
	Manifest imagespec.Descriptor
	Config   imagespec.Descriptor
	Layers   []imagespec.Descriptor
	Image    imagespec.Image
	// Artifact is set for an OCI artifact, whose Image is empty. Its layers are files.
	Artifact *image.Artifact
	// Annotations are the manifest's, nil when there are too many.
	Annotations map[string]string
}

// ID is the id of the image: the digest of its config. That of an artifact is the digest of its
// manifest, since most artifacts have the same config.
func (t *Tree) ID() string {
	if t.Artifact != nil {
		return t.Manifest.Digest.String()
	}
	return t.Config.Digest.String()
}

// TopChain is the name of the image's topmost snapshot.
func (t *Tree) TopChain() string {
	if t.Artifact != nil {
		return t.artifactChain()
	}
	return identity.ChainID(t.Image.RootFS.DiffIDs).String()
}

// Named is what the registry gives the name: Target, or the index that has led to it.
func (t *Tree) Named() imagespec.Descriptor {
	if len(t.Through) > 0 {
		return t.Through[0]
	}
	return t.Target
}

// DigestNames are the references of the same repository by what the registry gives the name, and, where
// that is an index, by the manifest of this platform: both are this image in the repository.
func (t *Tree) DigestNames(named reference.Named) []string {
	list := []string{names.WithDigest(named, t.Named().Digest)}
	if t.Manifest.Digest != t.Named().Digest {
		list = append(list, names.WithDigest(named, t.Manifest.Digest))
	}
	return list
}

// Chains are the names of the image's snapshots, lowest first. An artifact has one, with all its
// files.
func (t *Tree) Chains() []string {
	if t.Artifact != nil {
		return []string{t.artifactChain()}
	}
	ids := identity.ChainIDs(slices.Clone(t.Image.RootFS.DiffIDs))
	chains := make([]string, len(ids))
	for i, id := range ids {
		chains[i] = id.String()
	}
	return chains
}

// Size is what the image's content takes, in bytes.
func (t *Tree) Size() int64 {
	size := t.Manifest.Size + t.Config.Size
	seen := map[digest.Digest]bool{}
	for _, layer := range t.Layers {
		if !seen[layer.Digest] {
			size += layer.Size
		}
		seen[layer.Digest] = true
	}
	return size
}

// Provide makes the content store have what desc describes, or fails.
type Provide func(ctx context.Context, desc imagespec.Descriptor) error

// Reader reads trees.
type Reader struct {
	// Content compares what it provides with the digest.
	Content content.Provider
	// Platform is the one that is wanted: this node's, or that of For.
	Platform platforms.MatchComparer
	// For is the platform, "" for this node's; see image.ParsePlatform.
	For string
	// Known is set for an image that the store has taken: it stays readable if berth would not take it today.
	Known bool
}

// Read reads the documents of the image that target describes, for the reader's platform.
// provide is called for each document before it is read. name is for messages. Unsupported
// when the image is for other platforms only, Invalid when it is broken.
func (r Reader) Read(ctx context.Context, name string, target imagespec.Descriptor, provide Provide) (*Tree, error) {
	t, err := r.read(ctx, name, target, provide)
	if err == nil && r.For != "" && t.Artifact == nil {
		t.Platform, t.Target, t.Through, t.Indexes = r.For, t.Manifest, t.Indexes, nil
	}
	return t, err
}

func (r Reader) read(ctx context.Context, name string, target imagespec.Descriptor, provide Provide) (*Tree, error) {
	t := &Tree{Target: target}
	at := target
	for {
		if len(t.Indexes) > maxIndexDepth {
			return nil, fmt.Errorf("image %s: more than %d indexes in indexes: %w", name, maxIndexDepth, errs.Invalid)
		}
		document, err := r.readDocument(ctx, at, provide)
		if err != nil {
			return nil, err
		}
		if !r.Known {
			if err := checkForm(at, document); err != nil {
				return nil, fmt.Errorf("image %s: %s %s %w", name, at.MediaType, at.Digest, err)
			}
		}
		if !isIndex(at, document) {
			t.Manifest = at
			return t, r.readManifest(ctx, name, t, document, provide)
		}
		t.Indexes = append(t.Indexes, at)
		if at, err = r.choose(name, document); err != nil {
			return nil, err
		}
	}
}

// readDocument reads a JSON document of at most MaxDocument bytes.
func (r Reader) readDocument(ctx context.Context, desc imagespec.Descriptor, provide Provide) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, errs.Invalid)
	}
	if desc.Size <= 0 || desc.Size > MaxDocument {
		return nil, fmt.Errorf("%s %s claims %d bytes, at most %d are read: %w", desc.MediaType, desc.Digest, desc.Size, MaxDocument, errs.Invalid)
	}
	if err := provide(ctx, desc); err != nil {
		return nil, fmt.Errorf("%s %s: %w", desc.MediaType, desc.Digest, err)
	}
	desc.Data = nil
	data, err := r.readBlob(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("cannot read blob %s: %w", desc.Digest, err)
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("%s %s is no JSON: %w", desc.MediaType, desc.Digest, errs.Invalid)
	}
	if err := CheckElements(data); err != nil {
		return nil, fmt.Errorf("%s %s %w", desc.MediaType, desc.Digest, err)
	}
	if r.Known {
		return data, nil
	}
	if err := CheckKeys(data); err != nil {
		return nil, fmt.Errorf("%s %s %w", desc.MediaType, desc.Digest, err)
	}
	return data, nil
}

// CheckElements returns Invalid for a JSON document whose lists take many times its bytes in memory.
func CheckElements(document []byte) error {
	if n := bytes.Count(document, []byte(",")); n > MaxElements {
		return fmt.Errorf("has %d elements, at most %d are read: %w", n+1, MaxElements, errs.Invalid)
	}
	return nil
}

// readBlob reads a blob of at most MaxDocument bytes. What content has under a digest may be larger than the descriptor
// says, such as a layer of another image.
func (r Reader) readBlob(ctx context.Context, desc imagespec.Descriptor) ([]byte, error) {
	blob, err := r.Content.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	if blob.Size() > MaxDocument {
		return nil, fmt.Errorf("it has %d bytes, its descriptor says %d: %w", blob.Size(), desc.Size, errs.Invalid)
	}
	data := make([]byte, blob.Size())
	n, err := blob.ReadAt(data, 0)
	switch {
	case n == len(data) && errors.Is(err, io.EOF):
		err = nil
	case n < len(data) && errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

func isIndex(desc imagespec.Descriptor, document []byte) bool {
	if images.IsIndexType(desc.MediaType) {
		return true
	}
	if images.IsManifestType(desc.MediaType) {
		return false
	}
	var head struct {
		Manifests json.RawMessage `json:"manifests"`
	}
	return json.Unmarshal(document, &head) == nil && head.Manifests != nil
}

// choose picks the manifest of an index that fits this node best.
func (r Reader) choose(name string, document []byte) (imagespec.Descriptor, error) {
	var index imagespec.Index
	if err := json.Unmarshal(document, &index); err != nil {
		return imagespec.Descriptor{}, fmt.Errorf("image %s: cannot read its index: %w: %w", name, err, errs.Invalid)
	}
	var best *imagespec.Descriptor
	var others []string
	platformed := slices.ContainsFunc(index.Manifests, func(desc imagespec.Descriptor) bool { return desc.Platform != nil })
	for i := range index.Manifests {
		desc := &index.Manifests[i]
		switch {
		case desc.Platform == nil && desc.ArtifactType != "" && platformed:
			// It is about the images of the list, such as a signature.
		case desc.Platform == nil:
			// Only its config has the platform: used if nothing else fits.
			if best == nil {
				best = desc
			}
		case !r.Platform.Match(*desc.Platform):
			others = append(others, platforms.Format(*desc.Platform))
		case best == nil || best.Platform == nil || r.Platform.Less(*desc.Platform, *best.Platform):
			best = desc
		}
	}
	if best == nil {
		return imagespec.Descriptor{}, r.wrongPlatform(name, others)
	}
	return *best, nil
}

func (r Reader) wrongPlatform(name string, has []string) error {
	if r.For == "" {
		return WrongPlatform(name, has)
	}
	return fmt.Errorf("image %s is %s, its handler needs %s: %w", name, listed(has), r.For, errs.Unsupported)
}

// WrongPlatform is the error of an image that is for other platforms than this node's. Its kind
// is Unsupported.
func WrongPlatform(name string, has []string) error {
	return fmt.Errorf("image %s is %s, this node is %s: %w", name, listed(has), platforms.Format(platforms.DefaultSpec()), errs.Unsupported)
}

// listed lists platforms for people. Builders write "unknown" for what is no image.
func listed(has []string) string {
	has = slices.DeleteFunc(has, func(p string) bool { return strings.HasPrefix(p, "unknown") })
	if len(has) == 0 {
		return "for no platform"
	}
	return strings.Join(has, ", ")
}

func (r Reader) readManifest(ctx context.Context, name string, t *Tree, document []byte, provide Provide) error {
	var manifest imagespec.Manifest
	if err := json.Unmarshal(document, &manifest); err != nil {
		return fmt.Errorf("image %s: cannot read its manifest: %w: %w", name, err, errs.Invalid)
	}
	t.Config, t.Layers, t.Annotations = manifest.Config, manifest.Layers, bounded(manifest.Annotations)
	if kind := ArtifactType(&manifest); kind != "" {
		return r.readArtifact(ctx, name, t, kind, provide)
	}
	data, err := r.readDocument(ctx, t.Config, provide)
	if err != nil {
		return fmt.Errorf("image %s: its config: %w", name, err)
	}
	if err := json.Unmarshal(data, &t.Image); err != nil {
		return fmt.Errorf("image %s: cannot read its config: %w: %w", name, err, errs.Invalid)
	}
	return r.checkImage(name, t)
}

func bounded(annotations map[string]string) map[string]string {
	size := 0
	for key, value := range annotations {
		if size += len(key) + len(value); size > maxAnnotations {
			return nil
		}
	}
	return annotations
}

func (r Reader) checkImage(name string, t *Tree) error {
	host := platforms.DefaultSpec()
	// Old builders wrote no platform; it was the one of their host.
	if t.Image.OS == "" {
		t.Image.OS = host.OS
	}
	if t.Image.Architecture == "" {
		t.Image.Architecture = host.Architecture
	}
	if t.Config.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("image %s: its config has a %s digest, and ids of images are made of sha256: %w", name, t.Config.Digest.Algorithm(), errs.Unsupported)
	}
	if !r.Platform.Match(platforms.Normalize(t.Image.Platform)) {
		return r.wrongPlatform(name, []string{platforms.Format(t.Image.Platform)})
	}
	if len(t.Layers) != len(t.Image.RootFS.DiffIDs) {
		return fmt.Errorf("image %s: its manifest has %d layers, its config %d: %w", name, len(t.Layers), len(t.Image.RootFS.DiffIDs), errs.Invalid)
	}
	if len(t.Layers) == 0 || len(t.Layers) > MaxLayers {
		return fmt.Errorf("image %s has %d layers, want 1 to %d: %w", name, len(t.Layers), MaxLayers, errs.Invalid)
	}
	for i, layer := range t.Layers {
		err := errors.Join(layer.Digest.Validate(), t.Image.RootFS.DiffIDs[i].Validate())
		if err != nil || layer.Size < 0 || layer.Size > maxLayer {
			return fmt.Errorf("image %s: layer %d: digest %q, diff id %q, %d bytes: %w: %w", name, i, layer.Digest, t.Image.RootFS.DiffIDs[i], layer.Size, err, errs.Invalid)
		}
		if !isLayer(layer.MediaType) {
			return fmt.Errorf("image %s: layer %d is %s: %w", name, i, layer.MediaType, errs.Unsupported)
		}
	}
	return nil
}

// encryptedSuffix ends the media type of an encrypted layer. Before it is the type of the layer that was encrypted.
const encryptedSuffix = "+encrypted"

// isLayer reports whether the helper can unpack the type: tar, plain, gzip or zstd, and each of them encrypted.
func isLayer(mediaType string) bool {
	mediaType = strings.TrimSuffix(mediaType, encryptedSuffix)
	return images.IsLayerType(mediaType) && !strings.Contains(mediaType, "encrypted")
}

// IsEncrypted reports whether layer i of an image is encrypted. Layers of artifacts are files, which are taken as they
// are.
func (t *Tree) IsEncrypted(i int) bool {
	return t.Artifact == nil && strings.HasSuffix(t.Layers[i].MediaType, encryptedSuffix)
}

// Encrypted is how many layers of the image are encrypted.
func (t *Tree) Encrypted() (n int) {
	for i := range t.Layers {
		if t.IsEncrypted(i) {
			n++
		}
	}
	return n
}
