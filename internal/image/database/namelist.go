package database

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/images"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// names.json is a copy of the data that only the database has: the names of images, and which are
// pinned. All other data can be read from content and layers. The database has each name of
// the copy: berth adds a name to the database first, and removes it from the copy first. If the database lacks a name of the
// copy, the next start takes the database for damaged.

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
	Version int             `json:"version"`
	Images  json.RawMessage `json:"images"`
	// Sum is the CRC-32C of Images, "" in a copy of an earlier version.
	Sum string `json:"sum,omitempty"`
}

func sumOf(images []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(images, crc32.MakeTable(crc32.Castagnoli)))
}

const namesVersion = 1

// nameCopy is the state of the copy.
type nameCopy struct {
	// asked counts the calls of SaveNames.
	asked atomic.Uint64

	mu sync.Mutex // held while the copy is written
	// saved is how many calls of SaveNames the copy has the names of.
	saved uint64
	// going are the names that are about to be removed from the database.
	going map[string]bool
	// failed is set if the last write has failed, as on a full disk.
	failed bool
}

// SaveNames copies the names of the database, except those that are about to be removed. It only
// logs a failure: the copy is needed only if the database is lost, and the next collection writes it. Calls that wait for each other share one write.
func (d *DB) SaveNames(ctx context.Context) {
	call := d.names.asked.Add(1)
	d.names.mu.Lock()
	defer d.names.mu.Unlock()
	if d.names.saved >= call {
		return // a write that began after this call has what it is for
	}
	saved := d.names.asked.Load()
	d.saveNames(ctx)
	d.names.saved = saved
}

// leaveOut has the copy, from now on until free is called, without names that are to be removed.
func (d *DB) leaveOut(ctx context.Context, going map[string]bool) (free func()) {
	d.names.mu.Lock()
	defer d.names.mu.Unlock()
	if d.names.going == nil {
		d.names.going = map[string]bool{}
	}
	maps.Copy(d.names.going, going)
	d.saveNames(ctx)
	if d.names.failed { // a start would miss a name in the database that only the copy has
		if err := errors.Join(errs.IgnoreNotExist(os.Remove(d.namesPath())), sysfile.SyncDir(d.Root)); err != nil {
			d.log.Warn("cannot remove the copy of the images' names; the next start may rebuild the database", "error", err)
		}
	}
	return func() {
		d.names.mu.Lock()
		defer d.names.mu.Unlock()
		maps.DeleteFunc(d.names.going, func(name string, _ bool) bool { return going[name] })
	}
}

// retryNames writes the copy if the last write has failed.
func (d *DB) retryNames(ctx context.Context) {
	d.names.mu.Lock()
	defer d.names.mu.Unlock()
	if d.names.failed {
		d.saveNames(ctx)
	}
}

// saveNames writes the copy. d.names.mu is held.
func (d *DB) saveNames(ctx context.Context) {
	records, err := d.Images.List(ctx)
	if err == nil {
		err = d.writeNames(records)
	}
	if d.names.failed = err != nil; err != nil {
		d.log.Warn("cannot write the copy of the images' names; they are lost if the database is damaged", "error", err)
	}
}

func (d *DB) writeNames(records []images.Image) error {
	all := []NamedImage{}
	for _, record := range records {
		if !d.names.going[record.Name] {
			all = append(all, NamedImage{record.Name, record.Target, IsPinned(record), record.Labels[platformLabel], throughOf(record)})
		}
	}
	images, err := json.Marshal(all)
	if err != nil {
		return err
	}
	data, err := json.Marshal(nameList{Version: namesVersion, Images: images, Sum: sumOf(images)})
	if err != nil {
		return err
	}
	return sysfile.ReplaceSynced(d.namesPath(), data)
}

// ReadNames reads the copy. summed reports that no bit of it has changed since it was written. ReadNames returns an error if
// the copy is missing or damaged.
func (d *DB) ReadNames() (all []NamedImage, summed bool, err error) {
	data, err := os.ReadFile(d.namesPath())
	if err != nil {
		return nil, false, err
	}
	var list nameList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, false, fmt.Errorf("cannot read %s: %w", d.namesPath(), err)
	}
	if list.Version != namesVersion {
		return nil, false, fmt.Errorf("%s has version %d, want %d", d.namesPath(), list.Version, namesVersion)
	}
	if list.Sum != "" && list.Sum != sumOf(list.Images) {
		return nil, false, fmt.Errorf("%s is damaged: its checksum is wrong", d.namesPath())
	}
	if err := json.Unmarshal(list.Images, &all); err != nil {
		return nil, false, fmt.Errorf("cannot read %s: %w", d.namesPath(), err)
	}
	return all, list.Sum != "", nil
}

func (d *DB) hasNames() bool {
	names, _, err := d.ReadNames()
	return err == nil && len(names) > 0
}
