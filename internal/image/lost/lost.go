// Package lost keeps the list of images that a start has removed and that berth pulls again in the background. An image
// stays on the list until the pull has succeeded or has failed for good. If the daemon ends before, its next start continues.
package lost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// FileName is the name of the list's file below the root of an image store.
const FileName = "lost.json"

// Image is an image that a start has removed because too little of it was there.
type Image struct {
	// Names are the keys of its tags and digests, Target is what they point to.
	Names  []string             `json:"names"`
	Target imagespec.Descriptor `json:"target"`
}

// content is what the file has.
type content struct {
	Version int     `json:"version"`
	Images  []Image `json:"images"`
}

const version = 1

// List is the list of one image store. All methods are safe for concurrent use.
type List struct {
	path string
	log  *slog.Logger
	// mu guards the file.
	mu sync.Mutex
}

// NewList returns the list of the image store in root.
func NewList(root string, log *slog.Logger) *List {
	return &List{path: filepath.Join(root, FileName), log: log}
}

// Add puts images on the list of lost ones. It only logs a failure: the images are not lost by it.
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

// Images returns the images on the list, in the order of Add. A list that cannot be read is empty, and logged.
func (l *List) Images() []Image {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read()
}

func (l *List) read() []Image {
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
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
		return nil
	}
	return list.Images
}

func (l *List) change(change func([]Image) []Image) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := func() error {
		all := change(l.read())
		if len(all) == 0 {
			return errs.IgnoreNotExist(os.Remove(l.path))
		}
		data, err := json.Marshal(content{Version: version, Images: all})
		if err != nil {
			return err
		}
		return sysfile.ReplaceSynced(l.path, data)
	}()
	if err != nil {
		l.log.Warn("cannot write the list of lost images", "file", l.path, "error", err)
	}
}
