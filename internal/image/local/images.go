// Package local is the image store of this host: it has content, images and root
// filesystems in one directory on disk. It opens them, also after a crash or damage, and
// closes them. It is built on containerd's libraries (content store, metadata, overlay
// snapshotter, resolver).
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/check"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/erofs"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/importdirs"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/repair"
	"github.com/berthrun/berth/internal/image/rootfs"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/store"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// PullRules say how images are pulled.
type PullRules = store.PullRules

// ImportRules say which archives of the host are imported in the background; see package importdirs.
type ImportRules = importdirs.Rules

// Config of a store.
type Config struct {
	// Root is a directory on disk: content, metadata, snapshots, and what
	// containers write. It belongs to this store alone.
	Root string
	// State is a directory on tmpfs: root filesystems are mounted on
	// State/rootfs/<key>.
	State string
	// ReadyRootfs is how many directories for root filesystems are made ahead, 0 for none.
	ReadyRootfs int
	// FirstProject is the first of rootfs.Projects ids of project quotas, 0 to use none.
	FirstProject uint32
	// Snapshotter says what root filesystems are made of the layers: AutoSnapshotter, which is "", or one of the others.
	Snapshotter Snapshotter
	// Snapshotters are the sockets of proxy snapshotters of containerd, by their names; see package snapshotters.
	Snapshotters map[string]string
	// PullRules hold until SetPullRules.
	PullRules
	// RetryTime is that of store.Config.
	RetryTime time.Duration
	// PreloadedDirs have images that are used in place; see package preload. A missing
	// directory has none.
	PreloadedDirs []string
	// ImportRules hold until SetImportRules.
	ImportRules
	// UnpackHelper is the program that ends up in helper.Main.
	UnpackHelper program.Program
	// CgroupParent is where the helper's cgroups are made, a path from the root
	// of the hierarchy; "/berth-unpack" if empty.
	CgroupParent string
	// UserAgent is sent to registries; "berth" if empty.
	UserAgent string
	// Observer counts pulls, nil for nothing.
	Observer image.PullObserver
	// Jobs shows pulls, checks, and what is fetched again in the background; nil for nobody.
	Jobs image.Jobs
	Log  *slog.Logger
	// After, if not nil, is closed when the opening may begin: it takes processor time and the disk from what is more
	// urgent at a start.
	After <-chan struct{}
}

// Snapshotter is what root filesystems are made of the layers of an image.
type Snapshotter string

const (
	// AutoSnapshotter mounts overlays where the file system of the store can hold them, and copies the layers elsewhere.
	AutoSnapshotter Snapshotter = ""
	// OverlaySnapshotter mounts overlays, NativeSnapshotter copies the layers.
	OverlaySnapshotter Snapshotter = "overlay"
	NativeSnapshotter  Snapshotter = "native"
)

const (
	defaultCgroupParent = "/berth-unpack"
	defaultUserAgent    = "berth"
)

// Images is the store of images and of root filesystems. Start opens it in the background: what needs the databases
// waits until it is open.
type Images struct {
	cfg        Config
	log        *slog.Logger
	lock       *os.File
	cgroups    *cgroup.HelperGroups
	runner     *unpack.Runner
	background *background.Group
	trash      *background.Trash
	lost       *lost.List
	repair     repair.Repairer
	imports    *importdirs.Importer
	proxies    *snapshotters.Set
	// stop stops the work in the background.
	stop func()
	// wake is filled by changed, leftoverWake by leftoversChanged.
	wake, leftoverWake chan struct{}

	// written is set by CountWritten, nil for none.
	written atomic.Pointer[func(context.Context) (image.Usage, error)]

	// rulesMu guards rules, which hold for pulls.
	rulesMu sync.Mutex
	rules   PullRules

	// opened is closed when the store is open, or cannot be opened. failure is the reason then. giveUp ends the wait for
	// Config.After, and cancel an opening that has begun. What follows belongs to the opening until then.
	opened         chan struct{}
	failure        error
	giveUp, cancel context.CancelFunc
	// db and what is made on it are those of the last attempt to open.
	db     *database.DB
	layers *layers.Unpacker
	store  *store.Store
	rootfs *rootfs.Manager
	// copies is set if root filesystems are copies of the layers, and copiesBecause says why if nobody has asked for that.
	copies        bool
	copiesBecause string
	// droppedCopies is set while layers of copies are removed from the database, and not from the disk.
	droppedCopies bool
	// checker accounts for what is on disk.
	checker *check.Checker
}

// SetPullRules makes other rules hold for pulls that begin from now on; see store.Store. It does not wait until the store is open.
func (s *Images) SetPullRules(rules PullRules) {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	s.rules = rules
	if s.isOpen() {
		s.store.SetPullRules(rules)
	}
}

// SetImportRules makes other rules hold for archives that are imported in the background from now on. It does not wait until
// the store is open.
func (s *Images) SetImportRules(rules ImportRules) { s.imports.SetRules(rules) }

// Pools returns what is kept ready for root filesystems, nothing before the store is open.
func (s *Images) Pools() []figures.Pool {
	if !s.isOpen() {
		return nil
	}
	return []figures.Pool{s.rootfs.PoolFigures()}
}

// Faults returns messages about images that starts have lost, until they are back or somebody removes their names.
func (s *Images) Faults() []string {
	var coming, gone []string
	for _, image := range s.lost.Images() {
		if name := strings.Join(image.Called(), " "); image.NoPull {
			gone = append(gone, name)
		} else {
			coming = append(coming, name)
		}
	}
	var all []string
	if len(coming) > 0 {
		all = append(all, "images whose content was damaged or missing are lost; berth brings them back in the background (berth jobs): "+strings.Join(coming, ", "))
	}
	if len(gone) > 0 {
		all = append(all, "images whose content was damaged or missing are lost; pull or import them again, put their archives into a directory of image.import_dirs, or remove their names (berth image rm): "+strings.Join(gone, ", "))
	}
	return all
}

// LostNames are the names that a reference may mean, of images that the store has lost. Remove makes it forget them.
func (s *Images) LostNames(platform, ref string) []string {
	if !s.isOpen() {
		return nil
	}
	return s.store.LostNames(platform, ref)
}

// SetAside returns messages about what starts have set aside, until the quarantine is removed.
func (s *Images) SetAside() []string { return s.repair.Notes() }

// Close stops the work in the background and closes the store. Mounted root filesystems stay.
// It waits a little for removals and for the end of an opening; the next Open continues them.
func (s *Images) Close() error {
	s.endOpening()
	s.stop()
	var errList []error
	if s.cgroups != nil {
		s.cgroups.Close()
	}
	errList = append(errList, s.proxies.Close())
	if s.db != nil {
		err := s.db.Close()
		errList = append(errList, err)
		if err == nil && s.failure == nil {
			if err := s.repair.Closed(); err != nil {
				s.log.Warn("cannot note that the databases of the image store are intact; the next start checks them", "error", err)
			}
		}
	}
	if s.lock != nil {
		if err := s.lock.Close(); !errors.Is(err, os.ErrClosed) {
			errList = append(errList, err)
		}
	}
	return errors.Join(errList...)
}

// endOpening waits a little for an opening: it removes what a killed process has left.
func (s *Images) endOpening() {
	s.giveUp()
	late := time.NewTimer(s.background.CloseTimeout)
	defer late.Stop()
	select {
	case <-s.opened:
		return
	case <-late.C:
	}
	s.cancel()
	<-s.opened
}

func (c *Config) complete() error {
	for name, dir := range map[string]string{"root": c.Root, "state": c.State} {
		if !filepath.IsAbs(dir) || strings.ContainsAny(dir, ",:\\") {
			return fmt.Errorf("%s directory of the image store %q: want an absolute path without comma, colon and backslash (overlay mounts take none): %w", name, dir, errs.Invalid)
		}
	}
	if c.UnpackHelper == nil {
		return fmt.Errorf("the image store has no unpack helper: %w", errs.Invalid)
	}
	if c.CgroupParent == "" {
		c.CgroupParent = defaultCgroupParent
	}
	if c.UserAgent == "" {
		c.UserAgent = defaultUserAgent
	}
	if c.Jobs == nil {
		c.Jobs = image.Unlisted{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Root, c.State = filepath.Clean(c.Root), filepath.Clean(c.State)
	return nil
}

func (c *Config) paths() database.Paths     { return database.Paths{Root: c.Root} }
func (c *Config) rootfsPaths() rootfs.Paths { return rootfs.Paths{Root: c.Root, State: c.State} }
func (c *Config) erofsPaths() erofs.Paths {
	return erofs.Paths{Root: filepath.Join(c.Root, image.ErofsSnapshotter), State: filepath.Join(c.State, image.ErofsSnapshotter)}
}
func (c *Config) trashDir() string { return filepath.Join(c.Root, "trash") }

// makeDirs makes the directories, which only root may enter, whatever the umask:
// users must not reach a set-user-ID program of an image.
func (c *Config) makeDirs() error {
	for _, dir := range []string{c.Root, c.trashDir(), layers.UnsyncedDir(c.Root)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
	}
	return c.rootfsPaths().MakeDirs()
}
