package lost

import (
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image/names"
)

// Losses are the images that a start has found incomplete, by their targets. An image is pinned if one of its names is.
type Losses map[digest.Digest]*Image

// Note notes a name of a lost image, by its key (see names.Key), or its id, which is not a name.
func (l Losses) Note(target imagespec.Descriptor, name string, pinned bool) {
	one := l[target.Digest]
	if one == nil {
		one = &Image{Target: target}
		l[target.Digest] = one
	}
	one.Pinned = one.Pinned || pinned
	if names.IsID(name) {
		one.ID = name
		return
	}
	one.Names = append(one.Names, name)
}

// Images are those with a name, in the order of their targets. Pinned images come from an archive or a directory of the node.
func (l Losses) Images() []Image {
	var all []Image
	for _, dgst := range slices.Sorted(maps.Keys(l)) {
		one := *l[dgst]
		if len(one.Names) == 0 {
			continue
		}
		one.NoPull = one.Pinned
		all = append(all, one)
	}
	return all
}
