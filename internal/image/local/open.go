package local

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/check"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/erofs"
	"github.com/berthrun/berth/internal/image/importdirs"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/preload"
	"github.com/berthrun/berth/internal/image/repair"
	"github.com/berthrun/berth/internal/image/rootfs"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/store"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Open is Start, and returns when the store is open.
func Open(ctx context.Context, cfg Config) (*Images, error) {
	s, err := Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := s.Await(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Start locks the store for this process, and opens it in the background: it repairs the store after an unclean end,
// and rebuilds a database that cannot be read (see package repair). That may take minutes on a slow disk. Nobody who
// lists pods needs to wait for it: methods that need the databases wait, and Await reports the end. The opening does
// not begin if ctx ends before Config.After. Unavailable when another process has the store.
func Start(ctx context.Context, cfg Config) (*Images, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := newImages(cfg)
	database.ForwardLibraryLog(cfg.Log)
	if err := os.MkdirAll(cfg.Root, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the image store: %w", err)
	}
	if err := s.lockStore(); err != nil {
		return nil, err
	}
	// Nothing below the root is opened or changed before that.
	if err := s.repair.SetForeignAside(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set aside what is not the image store's in %s: %w", cfg.Root, err), s.lock.Close())
	}
	if err := cfg.makeDirs(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make the directories of the image store: %w", err), s.lock.Close())
	}
	layers, err := erofs.Open(erofs.Config{Paths: cfg.erofsPaths(), Discard: s.trash.Discard, Log: cfg.Log})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the layers of the snapshotter %s: %w", image.ErofsSnapshotter, err), s.lock.Close())
	}
	if s.proxies, err = snapshotters.New(snapshotters.Config{Addresses: cfg.Snapshotters, Root: cfg.Root, Own: layers, Log: cfg.Log}); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	turn, giveUp := context.WithCancel(ctx)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.giveUp, s.cancel = giveUp, cancel
	go func() {
		defer cancel()
		defer giveUp()
		s.failure = errs.Guard("opening of the image store", func() error {
			if err := s.awaitTurn(turn); err != nil {
				return err
			}
			return s.open(ctx)
		})
		s.publish()
	}()
	return s, nil
}

// awaitTurn waits until the opening may begin.
func (s *Images) awaitTurn(ctx context.Context) error {
	if s.cfg.After == nil {
		return nil
	}
	select {
	case <-s.cfg.After:
		return nil
	default:
	}
	select {
	case <-s.cfg.After:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cgroupPrefix begins the names of the cgroups of a store's helpers: stores side by side share the parent cgroup.
func cgroupPrefix(root string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(root)))[:12] }

func (s *Images) open(ctx context.Context) error {
	var err error
	if s.cgroups, err = cgroup.NewHelperGroups(s.cfg.CgroupParent, cgroupPrefix(s.cfg.Root)); err != nil {
		// In a container that may not make cgroups, say.
		s.log.Warn("cannot make a cgroup for unpacking layers; unpacking without a memory limit",
			"error", err)
		s.cgroups = nil
	} else if err := s.cgroups.Sweep(); err != nil {
		s.log.Warn("cannot remove the cgroups of helpers that an earlier process has left", "error", err)
	}
	s.runner = &unpack.Runner{Helper: s.cfg.UnpackHelper, Cgroups: s.cgroups, Cache: unpack.CacheOfHost(), Log: s.log}
	s.chooseSnapshotter()
	if err := s.openWhole(ctx); err != nil {
		return err
	}
	s.checker = check.New(check.Config{
		DB: s.db, Store: s.store, Layers: s.layers, Snapshotters: s.proxies, Erofs: s.cfg.erofsPaths(), Rootfs: s.rootfs, Background: s.background, Lost: s.lost, Archives: s.imports, Jobs: s.cfg.Jobs, Notes: s.SetAside,
		Quarantined: s.repair.Quarantined, Log: s.log,
	})
	s.store.OnDamage(s.checker.WantBlob)
	s.rootfs.OnMissing(s.checker.MendLayers)
	s.trash.Start()
	s.rootfs.StartPool()
	preloader := &preload.Preloader{DB: s.db, Layers: s.layers, Store: s.store, CanMount: s.rootfs.CanMount, Log: s.log}
	preloader.Take(ctx, s.cfg.PreloadedDirs)
	s.background.Go(s.noteQuiet)
	s.background.Go(s.tidyLeftovers)
	s.leftoversChanged() // by a killed process
	s.background.Go(func(ctx context.Context) {
		s.proxies.Run(ctx, struct {
			*store.Store
			*rootfs.Manager
		}{s.store, s.rootfs})
	})
	s.changed()
	gone := s.fetchLost()
	s.background.Go(func(ctx context.Context) { s.imports.Run(ctx, gone) })
	return nil
}

// chooseSnapshotter decides what root filesystems are made of the layers. An error that says nothing of the file system, as that
// of a full disk, changes nothing: nearly every one can hold overlays.
func (s *Images) chooseSnapshotter() {
	s.copies = s.cfg.Snapshotter == NativeSnapshotter
	if s.cfg.Snapshotter != AutoSnapshotter {
		return
	}
	err := s.cfg.rootfsPaths().ProbeOverlay()
	switch {
	case errors.Is(err, errs.Unsupported):
		s.copies, s.copiesBecause = true, fmt.Sprintf("each container has a copy of its image as its root filesystem, because %s cannot hold overlays: %s", s.cfg.Root, errs.Message(err))
		s.log.Warn("each container gets a copy of its image as its root filesystem, because the image store cannot hold overlays", "store", s.cfg.Root, "error", err)
	case err != nil:
		s.log.Warn("cannot try whether the image store can hold overlays; root filesystems are overlays", "store", s.cfg.Root, "error", err)
	}
}

// ProbeOverlay reports whether the file system of a store can hold overlays; see rootfs.Paths. It makes the directories that
// are missing.
func ProbeOverlay(root string) error {
	paths := rootfs.Paths{Root: root}
	if err := os.MkdirAll(paths.PoolDir(), 0o700); err != nil {
		return err
	}
	return paths.ProbeOverlay()
}

// fetchLost fetches again in the background what the opening has found damaged or missing. It returns the names of the images.
func (s *Images) fetchLost() []string {
	var all []string
	for _, gone := range s.lost.Images() {
		if !gone.NoPull {
			s.checker.WantImage(gone)
		}
		for _, key := range gone.Names {
			name, _ := names.OfKey(key)
			all = append(all, name)
		}
	}
	for _, blob := range s.store.TakeAbsent() {
		s.checker.WantBlob(blob)
	}
	return all
}

func newImages(cfg Config) *Images {
	group, list := background.NewGroup(), lost.NewList(cfg.Root, cfg.Log)
	s := &Images{
		cfg: cfg, log: cfg.Log, background: group, lost: list, trash: background.NewTrash(cfg.trashDir(), group, cfg.Log),
		repair: repair.Repairer{Paths: cfg.paths(), Helper: cfg.UnpackHelper, Lost: list, Log: cfg.Log},
		rules:  cfg.PullRules, opened: make(chan struct{}), wake: make(chan struct{}, 1), leftoverWake: make(chan struct{}, 1),
	}
	s.imports = importdirs.New(importdirs.Config{
		Root: cfg.Root, Import: s.importArchive, Jobs: cfg.Jobs, Log: cfg.Log,
		Pinned: s.pinned, Unpin: func(ctx context.Context, ids []string) error { return s.unpin(ctx, ids) },
		AwaitIdle: func(ctx context.Context) error { return s.store.AwaitIdle(ctx) },
	}, cfg.ImportRules)
	s.stop = sync.OnceFunc(func() {
		s.background.Close()
		s.trash.Close()
	})
	return s
}

// importArchive imports an archive for package importdirs, which runs when the store is open.
func (s *Images) importArchive(ctx context.Context, archive io.Reader, pin bool, progress func(image.Progress)) ([]image.Image, error) {
	defer s.changed()
	return s.store.Import(ctx, archive, "", pin, progress)
}

// pinned are the images that are pinned, and those that were when a start has lost them, for package importdirs.
func (s *Images) pinned() map[string]bool {
	pinned := s.store.Pinned()
	for _, gone := range s.lost.Images() {
		if gone.Pinned && gone.ID != "" {
			pinned[gone.ID] = true
		}
	}
	return pinned
}

// unpin takes the pin off images for package importdirs.
func (s *Images) unpin(ctx context.Context, ids []string) error {
	defer s.changed()
	return s.store.Unpin(ctx, ids)
}

// openWhole opens and recovers the store. When its databases cannot be read it sets them aside
// once, and rebuilds.
func (s *Images) openWhole(ctx context.Context) error {
	damage, err := s.repair.Inspect(ctx)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := s.attempt(ctx, damage)
		if attempt > 0 || !repair.IsDamage(err) || ctx.Err() != nil {
			return err
		}
		damage = err
		if s.db != nil {
			s.db.Abandon()
			s.db = nil
		}
	}
}

// attempt opens the store, after a rebuild if there was damage. A panic is damage, too.
func (s *Images) attempt(ctx context.Context, damage error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading it panicked: %v: %w", r, dbcheck.ErrDamaged)
		}
	}()
	ctx = database.WithNamespace(ctx)
	var under *repair.Rebuilding
	if damage != nil {
		if under, err = s.repair.SetAside(ctx, damage); err != nil {
			return s.repair.Unfinished(fmt.Errorf("cannot set the damaged database of the image store aside: %w", err))
		}
	}
	s.db = database.New(s.cfg.paths(), s.trash.Discard, s.log)
	if err := s.db.Open(ctx); err != nil {
		return s.repair.Unfinished(err)
	}
	if under != nil {
		if err = s.repair.Rebuild(ctx, s.db, under, s.cfg.rootfsPaths().RecordedChains); err != nil {
			return s.repair.Unfinished(fmt.Errorf("cannot rebuild the image store in %s: %w", s.cfg.Root, err))
		}
	} else if err := s.repair.LostRecords(ctx, s.db); err != nil {
		return err
	}
	s.makeParts()
	if err := s.recoverParts(ctx); err != nil {
		return fmt.Errorf("cannot recover the image store in %s: %w", s.cfg.Root, err)
	}
	s.db.SaveNames(ctx)
	return nil
}

// makeParts makes the parts that use the database.
func (s *Images) makeParts() {
	s.layers = layers.New(layers.Config{DB: s.db, Runner: s.runner, WhiteoutFiles: s.copies, Background: s.background, Log: s.log})
	s.store = store.New(store.Config{
		DB: s.db, Layers: s.layers, Snapshotters: s.proxies, Background: s.background, Lost: s.lost, PullRules: s.cfg.PullRules, UserAgent: s.cfg.UserAgent, Observer: s.cfg.Observer, Jobs: s.cfg.Jobs, LeftoversChanged: s.leftoversChanged, RetryTime: s.cfg.RetryTime, Log: s.log,
	})
	s.rootfs = rootfs.New(rootfs.Config{
		Paths: s.cfg.rootfsPaths(), Images: s.store, LayersDir: s.db.LayersDir(), Snapshotters: s.proxies, Copies: s.copies,
		ReadyDirs: s.cfg.ReadyRootfs, FirstProject: s.cfg.FirstProject, Discard: s.trash.Discard, Background: s.background, Log: s.log,
	})
}

// recoverParts brings the store into the state after a clean end: it removes the data of killed
// pulls and imports but the blobs that pulls have finished, makes again the layers that a loss of power may have damaged, and loads the
// images and root filesystems.
func (s *Images) recoverParts(ctx context.Context) error {
	for _, step := range []struct {
		of  string
		run func(context.Context) error
	}{
		{"unsynced snapshots", s.layers.CheckUnsynced},
		{"leases", s.store.DropWork},
		{"content", s.db.DropDamagedBlobs},
		{"records of images", s.store.ReadRecords},
		{"layers of copies", s.dropWhiteoutFiles},
		{"root filesystems", s.rootfs.Load},
		{"layers of root filesystems", s.store.KeepHeld},
		{"layers of copies", s.collectCopies}, // the first collection
		{"images", s.store.Load},
		{"unused content", s.db.Sweep},
		{"unused content", func(context.Context) error { return s.rootfs.DropMounts() }},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.of, err)
		}
	}
	if err := s.proxies.SweepOwn(); err != nil {
		s.log.Warn("cannot unmount layers that nothing uses; the next start tries it again", "error", err)
	}
	return nil
}

// dropWhiteoutFiles removes the layers that are unpacked again for overlays from the database.
func (s *Images) dropWhiteoutFiles(ctx context.Context) (err error) {
	s.droppedCopies, err = s.layers.DropWhiteoutFiles(ctx)
	return err
}

// collectCopies makes sure that the files of these layers have left the disk before they are unpacked again: it may not have room
// for both.
func (s *Images) collectCopies(ctx context.Context) error {
	if !s.droppedCopies {
		return nil
	}
	if err := s.db.Sweep(ctx); err != nil {
		return err
	}
	s.trash.Empty(ctx)
	return nil
}
