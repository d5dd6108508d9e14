package database

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/core/images"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// names.json is a copy of the data that only the database has: the names of images, and which are
// pinned. All other data can be read from content and layers. It never has a name that the
// database does not have: a name is added to the database first, and removed from the copy first.

// NamedImage is a name of an image, as the copy has it.
type NamedImage struct {
	Name   string               `json:"name"`
	Target imagespec.Descriptor `json:"target"`
	Pinned bool                 `json:"pinned,omitempty"`
	// Platform is set for an image that was chosen for another platform than the node's. Through are the indexes that led to
	// Target; see tree.Tree.
	Platform string                 `json:"platform,omitempty"`
	Through  []imagespec.Descriptor `json:"through,omitempty"`
}

type nameList struct {
	Version int          `json:"version"`
	Images  []NamedImage `json:"images"`
}

const namesVersion = 1

// SaveNames copies the names of the database, except those that are about to be removed. It only
// logs a failure: the copy is needed only if the database is lost.
func (d *DB) SaveNames(ctx context.Context, going map[string]bool) {
	records, err := d.Images.List(ctx)
	if err == nil {
		err = d.writeNames(records, going)
	}
	if err != nil {
		d.log.Warn("cannot write the copy of the images' names; they are lost if the database is damaged", "error", err)
	}
}

func (d *DB) writeNames(records []images.Image, going map[string]bool) error {
	list := nameList{Version: namesVersion, Images: []NamedImage{}}
	for _, record := range records {
		if !going[record.Name] {
			list.Images = append(list.Images, NamedImage{record.Name, record.Target, IsPinned(record), record.Labels[platformLabel], throughOf(record)})
		}
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return sysfile.ReplaceSynced(d.namesPath(), data)
}

// ReadNames reads the copy. It returns an error if there is no copy that can be used.
func (d *DB) ReadNames() ([]NamedImage, error) {
	data, err := os.ReadFile(d.namesPath())
	if err != nil {
		return nil, err
	}
	var list nameList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", d.namesPath(), err)
	}
	if list.Version != namesVersion {
		return nil, fmt.Errorf("%s has version %d, want %d", d.namesPath(), list.Version, namesVersion)
	}
	return list.Images, nil
}

func (d *DB) hasNames() bool {
	names, err := d.ReadNames()
	return err == nil && len(names) > 0
}
