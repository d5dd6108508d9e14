// Package lost keeps the list of images that a start has removed. An image stays on the list until it is back, or until somebody
// removes its names. berth pulls those again in the background that may come from a registry: until the pull has failed for good.
// If the daemon ends before, its next start continues.
package lost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// FileName is the name of the list's file below the root of an image store.
const FileName = "lost.json"

// Image is an image that a start has removed because too little of it was there.
type Image struct {
	// Names are the keys of its tags and digests, Target is what they point to.
	Names  []string             `json:"names"`
	Target imagespec.Descriptor `json:"target"`
	// ID is the id of the image, "" if it is not known.
	ID string `json:"id,omitempty"`
	// Pinned is set if the image was pinned. It is pinned again when it comes back.
	Pinned bool `json:"pinned,omitempty"`
	// NoPull is set if berth does not pull it: it comes from an archive or a directory of the node, or the pull has failed for
	// good.
	NoPull bool `json:"noPull,omitempty"`
}

// byDigest reports whether the key of a name has the digest of an image.
func byDigest(key string) bool { return strings.Contains(key, "@") }

// Called returns the names that people see: the tags, or the digests of an image without tags.
func (i Image) Called() []string {
	var tags, digests []string
	for _, key := range i.Names {
		if name, _ := names.OfKey(key); byDigest(key) {
			digests = append(digests, name)
		} else {
			tags = append(tags, name)
		}
	}
	if len(tags) > 0 {
		return tags
	}
	return digests
}

// IsBack reports whether the image is there again: one has the name with its digest, or others have all of its tags. taken
// reports whether an image has a name, by its key.
func (i Image) IsBack(taken func(key string) bool) bool {
	tags, free := 0, 0
	for _, key := range i.Names {
		switch {
		case byDigest(key) && taken(key):
			return true
		case byDigest(key):
		case taken(key):
			tags++
		default:
			free++
		}
	}
	return tags > 0 && free == 0
}

// content is what the file has.
type content struct {
	Version int     `json:"version"`
	Images  []Image `json:"images"`
}

const version = 1

// List is the list of one image store. All methods are safe for concurrent use. It only logs that it cannot write its file: what
// this process knows of the images is not lost by it.
type List struct {
	path string
	log  *slog.Logger
	// mu guards the file and the images, which are read once.
	mu     sync.Mutex
	known  bool
	images []Image
}

// NewList returns the list of the image store in root. It reads the file at the first call of a method.
func NewList(root string, log *slog.Logger) *List {
	return &List{path: filepath.Join(root, FileName), log: log}
}

// Add puts images on the list of lost ones.
func (l *List) Add(images []Image) {
	if len(images) == 0 {
		return
	}
	l.change(func(all []Image) []Image {
		for _, image := range images {
			at := slices.IndexFunc(all, func(one Image) bool { return one.Target.Digest == image.Target.Digest })
			if at < 0 {
				all = append(all, Image{Target: image.Target})
				at = len(all) - 1
			}
			all[at].NoPull, all[at].Pinned = image.NoPull, all[at].Pinned || image.Pinned
			if image.ID != "" {
				all[at].ID = image.ID
			}
			for _, name := range image.Names {
				if !slices.Contains(all[at].Names, name) {
					all[at].Names = append(all[at].Names, name)
				}
			}
		}
		return all
	})
}

// Forget takes an image off the list.
func (l *List) Forget(target digest.Digest) {
	l.change(func(all []Image) []Image {
		return slices.DeleteFunc(all, func(one Image) bool { return one.Target.Digest == target })
	})
}

// GiveUp notes that an image is not pulled again.
func (l *List) GiveUp(target digest.Digest) {
	l.change(func(all []Image) []Image {
		for at := range all {
			all[at].NoPull = all[at].NoPull || all[at].Target.Digest == target
		}
		return all
	})
}

// Settle takes images off the list that are back; see Image.IsBack.
func (l *List) Settle(taken func(key string) bool) {
	l.change(func(all []Image) []Image {
		return slices.DeleteFunc(all, func(one Image) bool { return one.IsBack(taken) })
	})
}

// Remove takes names off the list, by their keys. An image without another tag goes with its last one.
func (l *List) Remove(keys []string) {
	l.change(func(all []Image) []Image {
		return slices.DeleteFunc(all, func(one Image) bool {
			return slices.ContainsFunc(one.Names, func(key string) bool { return slices.Contains(keys, key) }) &&
				!slices.ContainsFunc(one.Names, func(key string) bool { return !byDigest(key) && !slices.Contains(keys, key) })
		})
	})
	l.change(func(all []Image) []Image {
		for at := range all {
			all[at].Names = slices.DeleteFunc(all[at].Names, func(key string) bool { return slices.Contains(keys, key) })
		}
		return all
	})
}

// WasPinned reports whether an image is on the list that was pinned, by its id and by the digests that its names may lead to.
func (l *List) WasPinned(id string, targets ...digest.Digest) bool {
	return slices.ContainsFunc(l.Images(), func(one Image) bool {
		return one.Pinned && (one.ID == id || slices.Contains(targets, one.Target.Digest))
	})
}

// Named are those of these names, by their keys, that images on the list have. They are names for people.
func (l *List) Named(keys []string) []string {
	var all []string
	for _, one := range l.Images() {
		for _, key := range one.Names {
			if name, _ := names.OfKey(key); slices.Contains(keys, key) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// Get returns an image on the list.
func (l *List) Get(target digest.Digest) (Image, bool) {
	for _, one := range l.Images() {
		if one.Target.Digest == target {
			return one, true
		}
	}
	return Image{}, false
}

// Images returns the images on the list, in the order of Add. A list that cannot be read is empty, and logged.
func (l *List) Images() []Image {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read()
	return clone(l.images)
}

// clone copies images, so that a change of one does not change the other.
func clone(images []Image) []Image {
	all := slices.Clone(images)
	for at := range all {
		all[at].Names = slices.Clone(all[at].Names)
	}
	return all
}

func (l *List) read() {
	if l.known {
		return
	}
	l.known = true
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var list content
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err == nil && list.Version != version {
		err = fmt.Errorf("it has version %d, want %d", list.Version, version)
	}
	if err != nil {
		l.log.Warn("cannot read the list of lost images; what a former start has lost is not pulled again in the background", "file", l.path, "error", err)
		return
	}
	l.images = list.Images
}

// change writes the file if the images change.
func (l *List) change(change func([]Image) []Image) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read()
	if len(l.images) == 0 {
		if l.images = change(nil); len(l.images) == 0 {
			return
		}
	} else if now := change(clone(l.images)); reflect.DeepEqual(now, l.images) {
		return
	} else {
		l.images = now
	}
	if err := l.write(); err != nil {
		l.log.Warn("cannot write the list of lost images", "file", l.path, "error", err)
	}
}

func (l *List) write() error {
	if len(l.images) == 0 {
		return errs.IgnoreNotExist(os.Remove(l.path))
	}
	data, err := json.Marshal(content{Version: version, Images: l.images})
	if err != nil {
		return err
	}
	return sysfile.ReplaceSynced(l.path, data)
}
