package images

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/cluster/images/imagefile"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// receiver is a node that gets images, with the images that it has.
type receiver struct {
	name    string
	runtime noderuntime.Runtime
	// images are the names of images by ID.
	images map[string][]string
	has    imagefile.Has
	// refs are the references of images in the node's runtime, by ID.
	refs map[string]string
}

// query asks a node which images it has.
func (l Loader) query(ctx context.Context, node provider.Node) (*receiver, error) {
	r := &receiver{name: node.Name, images: map[string][]string{}, refs: map[string]string{}}
	r.has = imagefile.Has{Blobs: map[digest.Digest]bool{}, Layers: map[digest.Digest]imagespec.Descriptor{}}
	var err error
	if r.runtime, _, err = noderuntime.Identify(ctx, l.Provider, node); err != nil {
		return nil, err
	}
	query := l.queryBerth
	if !r.runtime.IsBerth() {
		query = l.queryContainerd
	}
	if err := query(ctx, r); err != nil {
		return nil, fmt.Errorf("cannot list the images of %s: %w", node.Name, err)
	}
	return r, nil
}

func (l Loader) queryBerth(ctx context.Context, r *receiver) error {
	text, err := provider.Output(ctx, l.Provider, r.name, "berth", "image", "layers", "-o", "json")
	if err != nil {
		return err
	}
	return r.readBerth(text)
}

// readBerth reads `berth image layers -o json`.
func (r *receiver) readBerth(text string) error {
	var all []struct {
		ID     string
		Tags   []string
		Layers []struct {
			DiffID, Digest digest.Digest
			MediaType      string
			Size           int64
		}
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return fmt.Errorf("berth image layers: %w: %w", errs.Invalid, err)
	}
	for _, img := range all {
		r.images[img.ID] = img.Tags
		r.refs[img.ID] = img.ID
		for _, l := range img.Layers {
			r.has.Blobs[l.Digest] = true
			r.has.Layers[l.DiffID] = imagespec.Descriptor{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size}
		}
	}
	return nil
}

// queryContainerd asks containerd. Layers whose blobs containerd removed after it unpacked them are
// sent again.
func (l Loader) queryContainerd(ctx context.Context, r *receiver) error {
	images, err := provider.Output(ctx, l.Provider, r.name, ctr("images", "list")...)
	if err != nil {
		return err
	}
	blobs, err := provider.Output(ctx, l.Provider, r.name, ctr("content", "list", "--quiet")...)
	if err != nil {
		return err
	}
	r.readContainerd(images, blobs)
	return nil
}

// ctr returns a command of containerd's tool in the namespace of Kubernetes.
func ctr(args ...string) []string { return append([]string{"ctr", "--namespace=k8s.io"}, args...) }

// readContainerd reads the tables of ctr. Its images have a line for each name, one of
// which is the ID; those of one target are one image.
func (r *receiver) readContainerd(images, blobs string) {
	names := map[string][]string{} // by target
	ids := map[string]string{}     // targets by ID
	for line := range strings.Lines(images) {
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.HasPrefix(fields[2], "sha256:") {
			continue // the header
		}
		name, target := fields[0], fields[2]
		switch {
		case strings.HasPrefix(name, "sha256:"):
			ids[name] = target
		case !strings.Contains(name, "@"):
			names[target] = append(names[target], name)
		}
	}
	for id, target := range ids {
		r.images[id], r.refs[id] = names[target], id
	}
	for word := range strings.FieldsSeq(blobs) {
		r.has.Blobs[digest.Digest(word)] = true
	}
}

// missing returns the names that the image of an ID lacks; there is false where the node does not
// have the image.
func (r *receiver) missing(id string, names []string) (lacks []string, there bool) {
	own, there := r.images[id]
	for _, name := range names {
		if !slices.Contains(own, name) {
			lacks = append(lacks, name)
		}
	}
	return lacks, there
}

// tagCommand returns the command that adds names to an image of the node.
func (r *receiver) tagCommand(id string, names []string) []string {
	if r.runtime.IsBerth() {
		return append([]string{"berth", "image", "tag", r.refs[id]}, names...)
	}
	return ctr(append([]string{"images", "tag", "--force", r.refs[id]}, names...)...)
}

// importCommand returns the command that imports an archive from its standard input.
func (l Loader) importCommand(ctx context.Context, r *receiver) ([]string, error) {
	if r.runtime.IsBerth() {
		return []string{"berth", "image", "import", "-"}, nil
	}
	snapshotter, err := noderuntime.Snapshotter(ctx, l.Provider, r.name)
	return ctr("images", "import", "--digests", "--snapshotter="+snapshotter, "-"), err
}
