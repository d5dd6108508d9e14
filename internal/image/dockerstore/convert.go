package dockerstore

import (
	"slices"
	"strings"
	"time"

	imageapi "github.com/moby/moby/api/types/image"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
)

// details are what an image's id stands for.
type details struct {
	config   imagespec.ImageConfig
	platform imagespec.Platform
	created  time.Time
	chain    string
	// size is that of the summary when the details were read.
	size int64
}

func detailsFrom(found *imageapi.InspectResponse) details {
	d := details{platform: platformOf(found), created: unixTime(0)}
	if found.Config != nil {
		d.config = found.Config.ImageConfig
	}
	if created, err := time.Parse(time.RFC3339Nano, found.Created); err == nil {
		d.created = created
	}
	if len(found.RootFS.Layers) > 0 {
		d.chain = identity.ChainID(diffIDs(found)).String()
	}
	return d
}

func platformOf(found *imageapi.InspectResponse) imagespec.Platform {
	return imagespec.Platform{OS: found.Os, Architecture: found.Architecture, Variant: found.Variant}
}

func unixTime(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }

// imageOf converts what an engine says of one image. Size is the engine's, of the unpacked
// layers: a graph driver does not know how large the compressed ones were.
func (s *Images) imageOf(found *imageapi.InspectResponse) image.Image {
	return s.made(found.ID, found.RepoTags, found.RepoDigests, found.Size, detailsFrom(found))
}

// listed converts an image of a list.
func (s *Images) listed(summary imageapi.Summary, known details) image.Image {
	return s.made(summary.ID, summary.RepoTags, summary.RepoDigests, summary.Size, known)
}

// leastSize is the size of an image whose layers have no regular files. The kubelet does not run an
// image of 0 bytes: it takes that for an answer without a size.
const leastSize = 1

func (s *Images) made(id string, tags, digests []string, size int64, known details) image.Image {
	img := image.Image{
		ID: id, Tags: fullTags(tags), Digests: fullNames(digests), Size: max(size, leastSize), Config: known.config,
		OS: known.platform.OS, Architecture: known.platform.Architecture, Variant: known.platform.Variant,
		Created: known.created, ChainID: known.chain,
	}
	img.Pinned = s.isPinned(id, img.Tags)
	return img
}

// fullNames are the full forms of names as an engine shows them ("busybox:1"), sorted. Engines
// write "<none>" for what is not there, which is no name.
func fullNames(familiar []string) []string {
	var list []string
	for _, name := range familiar {
		if named, err := names.Parse(name); err == nil && !strings.Contains(name, "<none>") {
			list = append(list, named.String())
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// fullTags are the full forms of tags. Engines with the containerd image store list a digest as
// a tag of an image that was pulled by it.
func fullTags(familiar []string) []string {
	return slices.DeleteFunc(fullNames(familiar), func(name string) bool { return strings.Contains(name, "@") })
}

func diffIDs(found *imageapi.InspectResponse) []digest.Digest {
	ids := make([]digest.Digest, len(found.RootFS.Layers))
	for i, layer := range found.RootFS.Layers {
		ids[i] = digest.Digest(layer)
	}
	return ids
}

// historyOf converts the history of an engine, which has the newest entry first. An engine has the
// size of what an entry added, and not whether it made a layer. A layer may have no bytes; so entries
// without a size are those without a layer only if the others are as many as there are layers.
func historyOf(items []imageapi.HistoryResponseItem, layers int) []imagespec.History {
	list := make([]imagespec.History, 0, len(items))
	sized := 0
	for _, item := range slices.Backward(items) {
		created := unixTime(item.Created)
		list = append(list, imagespec.History{
			Created: &created, CreatedBy: item.CreatedBy, Comment: item.Comment, EmptyLayer: item.Size == 0,
		})
		if item.Size != 0 {
			sized++
		}
	}
	if sized != layers {
		for i := range list {
			list[i].EmptyLayer = false
		}
	}
	return list
}
