// Package check accounts for the files of an image store, and compares them with the digests of
// what they should be: blobs by their own, unpacked layers by unpacking their blob again.
package check

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/singleflight"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/archive"
	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/erofs"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/rootfs"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/store"
)

// Config of a checker.
type Config struct {
	DB     *database.DB
	Store  *store.Store
	Layers *layers.Unpacker
	// Snapshotters have the layers of images that are not unpacked, berth's own in Erofs.
	Snapshotters *snapshotters.Set
	Erofs        erofs.Paths
	Rootfs       *rootfs.Manager
	Lost         *lost.List
	// Archives are those that the daemon imports images from.
	Archives Archives
	// Background ends checks and what is fetched again when the store closes.
	Background *background.Group
	// Jobs shows both to people.
	Jobs image.Jobs
	// Notes are what starts have to say of what they have set aside, which Quarantined lists.
	Notes       func() []string
	Quarantined func() []image.Quarantined
	Log         *slog.Logger
}

// Archives are archives of the host that have images of the store; see package importdirs.
type Archives interface {
	// Extract takes a blob from an archive that has images with any of the names, and returns its path. It returns "" and no
	// error if no archive is known.
	Extract(ctx context.Context, names []string, want imagespec.Descriptor, to archive.Target, got func(int64)) (from string, err error)
	// AwaitLost returns when no archive is to be imported again for lost images with any of the names.
	AwaitLost(ctx context.Context, names []string) error
}

// Checker implements image.Auditor, and fetches damaged content again in the background; see WantBlob.
type Checker struct {
	Config
	running sync.Mutex
	// turn is held while something is fetched in the background.
	turn chan struct{}

	// mu guards wanted, the keys of what is being fetched, or waits for it.
	mu     sync.Mutex
	wanted map[string]bool
	// mends are the images whose layers are unpacked again.
	mends singleflight.Group
}

var _ image.Auditor = (*Checker)(nil)

// New makes a checker.
func New(cfg Config) *Checker {
	return &Checker{Config: cfg, turn: make(chan struct{}, 1), wanted: map[string]bool{}}
}

// run is one check.
type run struct {
	*Checker
	repair bool
	// seen gets the progress and the damage, and may be nil.
	seen   func(image.CheckUpdate)
	meter  *progress.Meter
	stages *image.Stages
	report *image.CheckReport
	images []store.Stored
	// broken are blobs that are damaged and not repaired.
	broken map[digest.Digest]bool
}

// Check implements image.Auditor.
func (c *Checker) Check(ctx context.Context, repair bool, seen func(image.CheckUpdate)) (*image.CheckReport, error) {
	if !c.running.TryLock() {
		return nil, fmt.Errorf("cannot check the image store: another check runs (berth jobs shows it; berth jobs cancel fsck ends it): %w", errs.State)
	}
	defer c.running.Unlock()
	ctx, end, err := c.Background.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot check the image store: %w", err)
	}
	defer end()
	r := &run{
		Checker: c, repair: repair, seen: seen, broken: map[digest.Digest]bool{},
		report: &image.CheckReport{Damage: []image.Damage{}, Unchecked: []string{}, Notes: append([]string{}, c.Notes()...), Quarantined: c.Quarantined()},
	}
	r.meter = progress.NewMeter(func(p image.Progress) {
		if seen != nil {
			seen(image.CheckUpdate{Progress: p})
		}
	})
	job := image.Job{Kind: "check images", Key: "image store", ID: "fsck", Waited: true}
	if repair {
		job.Kind = "repair images"
	}
	err = c.Jobs.Run(ctx, job, func(ctx context.Context, at image.Stage) error {
		r.stages = image.NewStages(at)
		ctx = database.WithNamespace(ctx)
		defer c.DB.Collect(context.WithoutCancel(ctx)) // the snapshots of layers that were unpacked to compare them
		return r.run(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot check the image store: %w", err)
	}
	return r.report, nil
}

func (r *run) run(ctx context.Context) error {
	replaced, _ := r.Rootfs.Replaced()
	for _, of := range replaced {
		r.note("containers %s use damaged files of layer %s, which a repair has replaced for new containers: remove these containers", strings.Join(of.Containers, ", "), of.Chain)
	}
	for _, step := range []func(context.Context) error{r.checkModes, r.readImages, r.checkBlobs, r.readImages, r.checkMissing, r.checkLayers, r.checkErofs, r.checkLost} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for _, img := range r.images {
		if img.Fault != nil {
			r.unchecked("the layers of %s: %v", nameOf(img), img.Fault)
		}
	}
	return nil
}

// found reports a damaged object, after its repair.
func (r *run) found(damage image.Damage) {
	r.report.Damage = append(r.report.Damage, damage)
	if r.seen != nil {
		r.seen(image.CheckUpdate{Damage: &damage})
	}
}

func (r *run) note(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

// unchecked notes an object that cannot be checked, and why.
func (r *run) unchecked(format string, args ...any) {
	r.report.Unchecked = append(r.report.Unchecked, fmt.Sprintf(format, args...))
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
