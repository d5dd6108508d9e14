package dockerstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// pins are the images that a kubelet must not collect.
type pins struct {
	// always are full references that are pinned.
	always map[string]bool

	mu sync.Mutex
	// ids are the images that were pinned by an import.
	ids map[string]bool
}

// pinFile is the form of the file of pins.
type pinFile struct {
	Images []string `json:"images"`
}

func (s *Images) pinPath() string { return filepath.Join(s.dir, "pins.json") }

// loadPins reads the pins. It sets a file that cannot be read aside: the images are there
// without it.
func (s *Images) loadPins() error {
	s.pins.ids = map[string]bool{}
	data, err := os.ReadFile(s.pinPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read which images are pinned: %w", err)
	}
	var file pinFile
	if err := json.Unmarshal(data, &file); err != nil {
		aside := s.pinPath() + ".damaged"
		s.log.Warn("cannot read which images are pinned; import them again with a pin", "file", aside, "error", err)
		return os.Rename(s.pinPath(), aside)
	}
	for _, id := range file.Images {
		s.pins.ids[id] = true
	}
	return nil
}

// isPinned reports whether an image is pinned.
func (s *Images) isPinned(id string, tags []string) bool {
	if slices.ContainsFunc(tags, func(tag string) bool { return s.pins.always[tag] }) {
		return true
	}
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	return s.pins.ids[id]
}

// pin pins images, and forgets those that the engine no longer has.
func (s *Images) pin(ctx context.Context, ids []string) error {
	there, err := s.client.ImageList(ctx, client.ImageListOptions{All: true})
	if err != nil {
		return err
	}
	present := map[string]bool{}
	for _, summary := range there.Items {
		present[summary.ID] = true
	}
	return s.changePins(func(pinned map[string]bool) {
		for id := range pinned {
			if !present[id] {
				delete(pinned, id)
			}
		}
		for _, id := range ids {
			pinned[id] = true
		}
	})
}

// unpin forgets the pin of an image that was removed.
func (s *Images) unpin(id string) error {
	return s.changePins(func(pinned map[string]bool) { delete(pinned, id) })
}

// changePins changes the pins, in memory once they are on disk.
func (s *Images) changePins(change func(map[string]bool)) error {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	changed := map[string]bool{}
	for id := range s.pins.ids {
		changed[id] = true
	}
	change(changed)
	file := pinFile{Images: make([]string, 0, len(changed))}
	for id := range changed {
		file.Images = append(file.Images, id)
	}
	slices.Sort(file.Images)
	data, err := json.Marshal(file)
	if err == nil {
		err = sysfile.ReplaceSynced(s.pinPath(), data)
	}
	if err != nil {
		return fmt.Errorf("cannot write which images are pinned: %w", errs.OfDisk(err))
	}
	s.pins.ids = changed
	return nil
}
