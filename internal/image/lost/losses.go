package lost

import (
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image/names"
)

// Losses are the images that a start has found incomplete, by their targets. An image is pinned if one of its names is.
type Losses map[digest.Digest]*loss

type loss struct {
	Image
	pinned bool
}

// Note notes a name of a lost image, by its key (see names.Key). An id is not a name.
func (l Losses) Note(target imagespec.Descriptor, name string, pinned bool) {
	if names.IsID(name) {
		return
	}
	one := l[target.Digest]
	if one == nil {
		one = &loss{Image: Image{Target: target}}
		l[target.Digest] = one
	}
	one.Names, one.pinned = append(one.Names, name), one.pinned || pinned
}

// Images are all of them, in the order of their targets. Pinned images come from an archive or a directory of the node.
func (l Losses) Images() []Image {
	var all []Image
	for _, dgst := range slices.Sorted(maps.Keys(l)) {
		one := l[dgst].Image
		one.NoPull = l[dgst].pinned
		all = append(all, one)
	}
	return all
}
