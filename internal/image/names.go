package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/images"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// names.json is a copy of what the database alone knows of images: their names, and which
// are pinned. All else can be read from content and layers. It never has a name that the
// database has not: a name is written there after it is written to the database, and goes
// before it goes from the database.
type namedImage struct {
	Name   string               `json:"name"`
	Target imagespec.Descriptor `json:"target"`
	Pinned bool                 `json:"pinned,omitempty"`
}

type nameList struct {
	Version int          `json:"version"`
	Images  []namedImage `json:"images"`
}

const namesVersion = 1

func (s *Images) namesPath() string { return filepath.Join(s.cfg.Root, "names.json") }

// saveNames copies the names of the database, but for those that are about to go. Failing is
// no reason to refuse an image: the copy is of use only once the database is lost.
func (s *Images) saveNames(ctx context.Context, going map[string]bool) {
	records, err := s.images.List(ctx)
	if err == nil {
		err = s.writeNames(records, going)
	}
	if err != nil {
		s.log.Warn("cannot write the copy of the images' names; a damaged database would take them along", "error", err)
	}
}

func (s *Images) writeNames(records []images.Image, going map[string]bool) error {
	list := nameList{Version: namesVersion, Images: []namedImage{}}
	for _, record := range records {
		if !going[record.Name] {
			list.Images = append(list.Images, namedImage{record.Name, record.Target, record.Labels[pinnedLabel] == pinnedValue})
		}
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return replaceSynced(s.namesPath(), data)
}

// readNames reads the copy. An error says why there is none that can be used.
func (s *Images) readNames() ([]namedImage, error) {
	data, err := os.ReadFile(s.namesPath())
	if err != nil {
		return nil, err
	}
	var list nameList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", s.namesPath(), err)
	}
	if list.Version != namesVersion {
		return nil, fmt.Errorf("%s has version %d, want %d", s.namesPath(), list.Version, namesVersion)
	}
	return list.Images, nil
}

func (s *Images) hasNames() bool {
	names, err := s.readNames()
	return err == nil && len(names) > 0
}

// replaceSynced replaces a file so that a loss of power leaves the old or the new one.
func replaceSynced(path string, data []byte) error {
	temp := filepath.Join(filepath.Dir(path), sysfile.TempPrefix+filepath.Base(path))
	if err := errs.IgnoreNotExist(os.Remove(temp)); err != nil {
		return err
	}
	if err := writeSynced(temp, data); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	return os.Rename(temp, path)
}
