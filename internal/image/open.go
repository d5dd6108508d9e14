package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/once"
	"github.com/berthrun/berth/internal/image/unpack"
)

// PullRules say how images are pulled.
type PullRules struct {
	// RegistryConfigDirs are searched for <host>/hosts.toml, first one wins.
	RegistryConfigDirs []string
	// NoProgressTimeout ends a pull whose registry sends nothing; 5 minutes if 0.
	NoProgressTimeout time.Duration
	// MaxConcurrentDownloads of one pull; 3 if 0.
	MaxConcurrentDownloads int
	// MaxLayer bounds the bytes of one layer's archive, unpacked; 128 GiB if 0.
	MaxLayer int64
}

func (r PullRules) withDefaults() PullRules {
	r.NoProgressTimeout = cmp.Or(r.NoProgressTimeout, defaultNoProgressTimeout)
	r.MaxConcurrentDownloads = cmp.Or(r.MaxConcurrentDownloads, defaultDownloads)
	r.MaxLayer = cmp.Or(r.MaxLayer, defaultMaxLayer)
	return r
}

// SetPullRules makes other rules hold for pulls that begin from now on.
func (s *Images) SetPullRules(rules PullRules) {
	rules = rules.withDefaults()
	s.rules.Store(&rules)
}

// Config of a store.
type Config struct {
	// Root is a directory on disk: content, metadata, snapshots, and what
	// containers write. It belongs to this store alone.
	Root string
	// State is a directory on tmpfs: root filesystems are mounted on
	// State/rootfs/<key>.
	State string
	// PullRules hold until SetPullRules.
	PullRules
	// PreloadedDirs have images that are used where they lie; see preload.go. One that is
	// not there has none.
	PreloadedDirs []string
	// UnpackHelper is the command that ends up in UnpackMain.
	UnpackHelper []string
	// CgroupParent is where the helper's cgroups are made, a path from the root
	// of the hierarchy; "/berth-unpack" if empty.
	CgroupParent string
	// UserAgent is what registries are told about the client.
	UserAgent string
	Log       *slog.Logger
}

const (
	defaultNoProgressTimeout = 5 * time.Minute
	defaultDownloads         = 3
	defaultMaxLayer          = 128 << 30
	defaultCgroupParent      = "/berth-unpack"
	defaultUserAgent         = "berth"

	// namespace is the one that containerd keeps Kubernetes' images in.
	namespace   = "k8s.io"
	snapshotter = "overlayfs"

	// openTimeout is how long Open waits for another process that has the store.
	openTimeout = 2 * time.Second
)

// Images is the store of images and of root filesystems. It implements Store and
// Rootfs.
type Images struct {
	cfg       Config
	rules     atomic.Pointer[PullRules]
	log       *slog.Logger
	lock      *os.File
	bolt      *bbolt.DB
	db        *metadata.DB
	content   content.Store
	snapshots snapshots.Snapshotter
	overlay   *layerStore
	images    images.Store
	leases    leases.Manager
	platform  platforms.MatchComparer
	cgroups   *unpack.Cgroups
	runner    *unpack.Runner

	flights once.Flights[string, Progress]
	// blobs and chains are held while one is fetched or unpacked.
	blobs, chains once.Keys

	// mu guards index, names and uses.
	mu    sync.RWMutex
	index map[string]*entry
	// names are all references and to which id each belongs.
	names map[string]string
	uses  uses

	pool dirPool
	// keys is held while the root filesystem of one key is changed.
	keys once.Keys
	// trashed wakes the worker that empties the trash.
	trashed chan struct{}
	// slice is trashSlice, but in tests.
	slice time.Duration
	// patience is how long Close waits for removals; settled is closed when nothing else
	// goes on.
	patience time.Duration
	removals sync.WaitGroup
	settled  chan struct{}
	// background counts what Close waits for.
	background sync.WaitGroup
	// closing is closed when Close has been called.
	closing chan struct{}
	close   func()
}

var (
	_ Store  = (*Images)(nil)
	_ Rootfs = (*Images)(nil)
)

// Open opens the store, repairs what an unclean end left in it, and takes it for
// this process. Unavailable when another process has it. A database that cannot be read is
// made again; see damage.go.
func Open(ctx context.Context, cfg Config) (_ *Images, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Images{
		cfg: cfg, log: cfg.Log,
		platform: platforms.Default(),
		trashed:  make(chan struct{}, 1),
		slice:    trashSlice,
		patience: closePatience,
	}
	s.SetPullRules(cfg.PullRules)
	s.closing = make(chan struct{})
	s.settled = make(chan struct{})
	s.close = sync.OnceFunc(func() {
		close(s.closing)
		s.background.Wait()
		s.endTrash()
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	forwardLibraryLog(cfg.Log)
	if err := s.makeDirs(); err != nil {
		return nil, fmt.Errorf("cannot make the directories of the image store: %w", err)
	}
	if err := s.lockStore(); err != nil {
		return nil, err
	}
	// Stores side by side share the parent cgroup: the prefix is of this root.
	prefix := fmt.Sprintf("%x", sha256.Sum256([]byte(cfg.Root)))[:12]
	if s.cgroups, err = unpack.NewCgroups(cfg.CgroupParent, prefix); err != nil {
		// In a container that may not make cgroups, say.
		cfg.Log.Warn("layers are unpacked without a memory limit: this host gives no cgroup for it", "error", err)
		s.cgroups = nil
	}
	s.runner = &unpack.Runner{Helper: cfg.UnpackHelper, Cgroups: s.cgroups}
	if err := s.openWhole(ctx); err != nil {
		return nil, err
	}
	s.startTrash()
	s.pool.start(s)
	s.preload(s.ns(ctx))
	return s, nil
}

func (c *Config) complete() error {
	for name, dir := range map[string]string{"root": c.Root, "state": c.State} {
		if !filepath.IsAbs(dir) || strings.ContainsAny(dir, ",:\\") {
			return fmt.Errorf("%s directory of the image store %q: want an absolute path without comma, colon and backslash (overlay mounts take none): %w", name, dir, errs.Invalid)
		}
	}
	if len(c.UnpackHelper) == 0 {
		return fmt.Errorf("the image store has no unpack helper: %w", errs.Invalid)
	}
	if c.CgroupParent == "" {
		c.CgroupParent = defaultCgroupParent
	}
	if c.UserAgent == "" {
		c.UserAgent = defaultUserAgent
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Root, c.State = filepath.Clean(c.Root), filepath.Clean(c.State)
	return nil
}

// makeDirs makes the directories that nobody but root may enter, whatever the
// umask: a set-user-ID program of an image must be out of reach of users.
func (s *Images) makeDirs() error {
	for _, dir := range []string{s.cfg.Root, s.containersDir(), s.poolDir(), s.trashDir(), s.markersDir(), s.mountsDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
	}
	return s.makeMappedDir()
}

func (s *Images) snapshotsDir() string  { return filepath.Join(s.cfg.Root, "snapshots") }
func (s *Images) layersDir() string     { return filepath.Join(s.snapshotsDir(), "snapshots") }
func (s *Images) metadataDB() string    { return filepath.Join(s.cfg.Root, "metadata.db") }
func (s *Images) snapshotsDB() string   { return filepath.Join(s.snapshotsDir(), "metadata.db") }
func (s *Images) contentDir() string    { return filepath.Join(s.cfg.Root, "content") }
func (s *Images) containersDir() string { return filepath.Join(s.cfg.Root, "containers") }
func (s *Images) poolDir() string       { return filepath.Join(s.cfg.Root, "pool") }
func (s *Images) trashDir() string      { return filepath.Join(s.cfg.Root, "trash") }
func (s *Images) markersDir() string    { return filepath.Join(s.cfg.Root, "unsynced") }
func (s *Images) mountsDir() string     { return filepath.Join(s.cfg.State, "rootfs") }

func (s *Images) openStores(ctx context.Context) (err error) {
	// Both databases are synced: they are written when images change, never when
	// a container is made.
	path := s.metadataDB()
	s.bolt, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("cannot open the image store: another process has %s: %w", path, errs.Unavailable)
	}
	if err != nil {
		return fmt.Errorf("cannot open the image store's metadata %s: %w", path, err)
	}
	// Nothing is being fetched yet, and what was is not resumed. The collector
	// would keep what was cut short while it was begun.
	if err := os.RemoveAll(filepath.Join(s.contentDir(), "ingest")); err != nil {
		return fmt.Errorf("cannot remove unfinished content: %w", err)
	}
	blobs, err := local.NewStore(s.contentDir())
	if err != nil {
		return fmt.Errorf("cannot open the content store: %w", err)
	}
	// The content store's test for fs-verity leaves its file open until it is collected.
	go runtime.GC()
	if s.overlay, err = s.openLayerStore(); err != nil {
		return fmt.Errorf("cannot open the snapshots: %w", err)
	}
	if s.hasNames() {
		if err := s.overlay.check(s.ns(ctx)); err != nil {
			return fmt.Errorf("cannot use the snapshots: %w", err)
		}
	}
	// Directories whose transaction was cut short would be in the way of the next
	// snapshot, which gets the same number.
	if err := s.overlay.Cleanup(s.ns(ctx)); err != nil {
		return fmt.Errorf("cannot remove unfinished snapshots: %w", err)
	}
	s.db = metadata.NewDB(s.bolt, blobs, map[string]snapshots.Snapshotter{snapshotter: s.overlay})
	if err := s.db.Init(s.ns(ctx)); err != nil {
		return fmt.Errorf("cannot initialize the image store's metadata: %w", err)
	}
	if err := labelLayers(s.ns(ctx), s.overlay); err != nil {
		return fmt.Errorf("cannot label the layers: %w", err)
	}
	s.content = s.db.ContentStore()
	s.snapshots = s.db.Snapshotter(snapshotter)
	s.images = metadata.NewImageStore(s.db)
	s.leases = metadata.NewLeaseManager(s.db)
	return nil
}

// Close ends what goes on in the background and closes the store. Mounted root
// filesystems stay. What is being removed gets a little time; the next Open goes on.
func (s *Images) Close() error {
	s.close()
	var errList []error
	if s.cgroups != nil {
		s.cgroups.Close()
	}
	if s.overlay != nil {
		errList = append(errList, s.overlay.Close())
	}
	if s.bolt != nil {
		errList = append(errList, s.bolt.Close())
	}
	if s.lock != nil {
		if err := s.lock.Close(); !errors.Is(err, os.ErrClosed) {
			errList = append(errList, err)
		}
	}
	return errors.Join(errList...)
}

// untilClosed returns a context that also ends when the store is closed.
func (s *Images) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// do runs fn in the background; Close cancels its context and waits for it.
func (s *Images) do(fn func(ctx context.Context)) {
	s.background.Go(func() {
		ctx, cancel := s.untilClosed(context.Background())
		defer cancel()
		errs.Protect("work of the image store in the background", func() { fn(s.ns(ctx)) })
	})
}

// begin lets Close end what runs in ctx, and wait for it.
func (s *Images) begin(ctx context.Context) (context.Context, func(), error) {
	select {
	case <-s.closing:
		return nil, nil, fmt.Errorf("the image store is closed: %w", errs.Unavailable)
	default:
	}
	s.background.Add(1)
	ctx, cancel := s.untilClosed(ctx)
	return ctx, func() {
		cancel()
		s.background.Done()
	}, nil
}

// OwnHelper is Config.UnpackHelper of a program that is its own; see UnpackMain.
func OwnHelper() []string { return []string{"/proc/self/exe", "unpack-layer"} }

// UnpackMain is the main function of the unpack helper, in which layers are
// applied and databases are checked. A program that opens a store calls it as early as it can, when it finds
// itself started by Config.UnpackHelper:
//
//	if len(os.Args) > 1 && os.Args[1] == "unpack-layer" {
//		os.Exit(image.UnpackMain(os.Args[2:]))
//	}
//
// with OwnHelper. The program must be built without cgo, since Go can take
// capabilities from all threads only then.
func UnpackMain(args []string) int {
	if len(args) > 0 && args[0] == dbcheck.Arg {
		return dbcheck.Main(args[1:])
	}
	return unpack.Main(args)
}
