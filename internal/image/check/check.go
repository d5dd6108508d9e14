// Package check accounts for the files of an image store, and compares them with the digests of
// what they should be: blobs by their own, unpacked layers by unpacking their blob again.
package check

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/image/rootfs"
	"github.com/berthrun/berth/internal/image/store"
)

// Config of a checker.
type Config struct {
	DB     *database.DB
	Store  *store.Store
	Layers *layers.Unpacker
	Rootfs *rootfs.Manager
	// Notes are what earlier repairs have to say.
	Notes func() []string
}

// Checker implements image.Auditor.
type Checker struct {
	Config
	running sync.Mutex
}

var _ image.Auditor = (*Checker)(nil)

// New makes a checker.
func New(cfg Config) *Checker { return &Checker{Config: cfg} }

// run is one check.
type run struct {
	*Checker
	repair bool
	report *image.CheckReport
	images []store.Stored
	// broken are blobs that are damaged and not repaired.
	broken map[digest.Digest]bool
}

// Check implements image.Auditor.
func (c *Checker) Check(ctx context.Context, repair bool) (*image.CheckReport, error) {
	if !c.running.TryLock() {
		return nil, fmt.Errorf("cannot check the image store: another check runs: %w", errs.State)
	}
	defer c.running.Unlock()
	ctx = database.WithNamespace(ctx)
	r := &run{
		Checker: c, repair: repair, broken: map[digest.Digest]bool{},
		report: &image.CheckReport{Damage: []image.Damage{}, Notes: append([]string{}, c.Notes()...)},
	}
	for _, step := range []func(context.Context) error{r.readImages, r.checkBlobs, r.readImages, r.checkMissing, r.checkLayers} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("cannot check the image store: %w", err)
		}
	}
	for _, img := range r.images {
		if img.Fault != nil {
			r.note("the layers of %s are not checked: %v", nameOf(img), img.Fault)
		}
	}
	return r.report, nil
}

func (r *run) note(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

// readImages lists the images; again after documents have been repaired.
func (r *run) readImages(ctx context.Context) (err error) {
	r.images, err = r.Store.Inventory(ctx)
	return err
}

// nameOf is a name of an image for people.
func nameOf(img store.Stored) string {
	if names := img.Names(); len(names) > 0 {
		return names[0]
	}
	return img.ID
}

// users returns the root filesystems that stand on a snapshot.
func (c *Checker) users(ctx context.Context, chain string) ([]string, error) {
	all := []string{}
	for top, keys := range c.Rootfs.Users() {
		below, err := c.DB.IsBelow(ctx, chain, top)
		if err != nil {
			return nil, err
		}
		if below {
			all = append(all, keys...)
		}
	}
	slices.Sort(all)
	return all, nil
}
