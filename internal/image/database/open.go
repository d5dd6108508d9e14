// Package database has what an image store keeps on disk: blobs, snapshots, leases, and
// records of images, in containerd's databases and in the files beside them from which these
// can be made again. It knows nothing of registries, archives or containers.
package database

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database/crosscheck"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

const (
	// namespace is the one that containerd keeps Kubernetes' images in.
	namespace   = "k8s.io"
	snapshotter = image.OverlaySnapshotter

	// OpenTimeout is how long opening waits for another process that has the store.
	OpenTimeout = 2 * time.Second
)

// WithNamespace prepares a context for containerd's libraries.
func WithNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}

// Paths are the databases' files and the directories that they describe.
type Paths struct {
	// Root is the directory of the image store, an absolute path.
	Root string
}

// MetadataFile is the database of images, content and leases.
func (p Paths) MetadataFile() string { return filepath.Join(p.Root, "metadata.db") }

// SnapshotsFile is the database of snapshots.
func (p Paths) SnapshotsFile() string { return filepath.Join(p.snapshotsDir(), "metadata.db") }

// LayersDir has a directory for each snapshot.
func (p Paths) LayersDir() string { return filepath.Join(p.snapshotsDir(), "snapshots") }

// ContentDir has the blobs.
func (p Paths) ContentDir() string { return filepath.Join(p.Root, "content") }

// BlobPath is where the content store keeps a blob. The helper reads the file itself, which
// no interface of the content store offers.
func (p Paths) BlobPath(dgst digest.Digest) string {
	return filepath.Join(p.ContentDir(), "blobs", dgst.Algorithm().String(), dgst.Encoded())
}

func (p Paths) snapshotsDir() string { return filepath.Join(p.Root, "snapshots") }
func (p Paths) namesPath() string    { return filepath.Join(p.Root, "names.json") }

// DB is the databases of one image store. Its methods are safe for concurrent use; their
// contexts come from WithNamespace unless they say otherwise.
type DB struct {
	Paths
	// Content, Snapshots, Images and Leases are there from Open on.
	Content   content.Store
	Snapshots snapshots.Snapshotter
	Images    images.Store
	Leases    leases.Manager

	bolt    *bbolt.DB
	db      *metadata.DB
	overlay *layerStore
	discard func(path string) error
	log     *slog.Logger
	// restoring is held by RestoreFiles.
	restoring sync.Mutex
	// labels is held while a label of a committed layer is changed.
	labels sync.Mutex
	// collection is held while the collector runs; see together.
	collection sync.Mutex
	finished   finished
	names      nameCopy
	// strays are the directories of layers that only the metadata does not have, by their chain IDs; see crosscheck.
	strays map[string]string
}

// New names the databases below a root directory. Directories of removed layers are given to
// discard.
func New(paths Paths, discard func(path string) error, log *slog.Logger) *DB {
	return &DB{Paths: paths, discard: discard, log: log}
}

// Open opens the databases, and removes what transactions that were cut short left beside
// them. Unavailable when another process has them, dbcheck.ErrDamaged when they contradict each
// other or the labels of layers. After an error the caller calls Close or Abandon.
func (d *DB) Open(ctx context.Context) (err error) {
	ctx = WithNamespace(ctx)
	// Both databases are synced: they are written when images change, never when
	// a container is made.
	path := d.MetadataFile()
	d.bolt, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: OpenTimeout, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%s: %w", HeldBy(path), errs.Unavailable)
	}
	if err != nil {
		return fmt.Errorf("cannot open the image store's metadata %s: %w", path, err)
	}
	if err := d.tidyIngests(); err != nil {
		return err
	}
	blobs, err := local.NewStore(d.ContentDir())
	if err != nil {
		return fmt.Errorf("cannot open the content store: %w", err)
	}
	// The content store's test for fs-verity leaves its file open until it is collected.
	go runtime.GC()
	if d.overlay, err = openLayerStore(d.Paths, d.discard); err != nil {
		return fmt.Errorf("cannot open the snapshots: %w", err)
	}
	labels, err := d.crossCheck(ctx)
	if err != nil {
		return fmt.Errorf("cannot use the records of layers: %w", err)
	}
	// Directories of an interrupted transaction would conflict with the next
	// snapshot, which gets the same number.
	if err := d.overlay.Cleanup(ctx); err != nil {
		return fmt.Errorf("cannot remove unfinished snapshots: %w", err)
	}
	d.db = metadata.NewDB(d.bolt, regularBlobs{blobs, d}, map[string]snapshots.Snapshotter{snapshotter: d.overlay})
	if err := d.db.Init(ctx); err != nil {
		return fmt.Errorf("cannot initialize the image store's metadata: %w", err)
	}
	if err := labelLayers(ctx, d.overlay, labels, true); err != nil {
		return fmt.Errorf("cannot label the layers: %w", err)
	}
	d.Content = d.db.ContentStore()
	d.Snapshots = d.db.Snapshotter(snapshotter)
	d.Images = metadata.NewImageStore(d.db)
	d.Leases = metadata.NewLeaseManager(d.db)
	return nil
}

// crossCheck compares what is recorded of layers, before anything is removed because of it. It returns the labels of layers.
func (d *DB) crossCheck(ctx context.Context) (map[string]foundLabel, error) {
	labels, err := readLabels(d.LayersDir())
	if err != nil {
		return nil, err
	}
	complete := map[string]string{}
	for dir, label := range labels {
		if label.complete {
			complete[dir] = label.Chain
		}
	}
	d.strays, err = crosscheck.Layers{
		Metadata: d.bolt, Path: snapshotsPath(), Snapshots: d.overlay.meta, Labels: complete, Replaced: d.replaced(),
	}.Compare(ctx)
	return labels, err
}

// replaced reports whether the metadata has no image, and the copy of the names has some.
func (d *DB) replaced() bool {
	none := true
	err := d.bolt.View(func(tx *bbolt.Tx) error {
		if images := crosscheck.Bucket(tx, []string{"v1", namespace, "images"}); images != nil {
			name, _ := images.Cursor().First()
			none = name == nil
		}
		return nil
	})
	return err == nil && none && d.hasNames()
}

// Close closes the databases.
func (d *DB) Close() error {
	var errList []error
	if d.overlay != nil {
		errList = append(errList, d.overlay.Close())
	}
	if d.bolt != nil {
		errList = append(errList, d.bolt.Close())
	}
	return errors.Join(errList...)
}

// Abandon closes databases that cannot be used, in the background. A panic may have left a
// transaction open, and Close would wait for it forever.
func (d *DB) Abandon() { go func() { _ = d.Close() }() }

// Unsynced runs fn, whose changes are synced to disk together at its end.
func (d *DB) Unsynced(fn func() error) error {
	d.bolt.NoSync = true
	defer func() { d.bolt.NoSync = false }()
	if err := fn(); err != nil {
		return err
	}
	return d.bolt.Sync()
}

// ReadTree reads an image from outside for a platform, "" for this node's; see tree.Reader. If the context is that of a pull,
// Wants records the documents that provide downloads.
func (d *DB) ReadTree(ctx context.Context, name, platform string, target imagespec.Descriptor, provide tree.Provide) (*tree.Tree, error) {
	return d.reader(platform).Read(ctx, name, target, pullIn(ctx).noting(provide))
}

// ReadKnownTree is ReadTree for an image that the store has taken.
func (d *DB) ReadKnownTree(ctx context.Context, name, platform string, target imagespec.Descriptor, provide tree.Provide) (*tree.Tree, error) {
	r := d.reader(platform)
	r.Known = true
	return r.Read(ctx, name, target, provide)
}

func (d *DB) reader(platform string) tree.Reader {
	return tree.Reader{Content: d.Compared(), Platform: image.MatcherOf(platform), For: platform}
}

// ReadRecord reads the image of a record.
func (d *DB) ReadRecord(ctx context.Context, record images.Image, provide tree.Provide) (*tree.Tree, error) {
	t, err := d.ReadKnownTree(ctx, record.Name, record.Labels[platformLabel], record.Target, provide)
	if err == nil && t.Platform != "" {
		t.Through = throughOf(record)
	}
	return t, err
}

// maxCommand bounds how much of a command line is shown.
const maxCommand = 200

// HeldBy says for people which process has locked a file of the store, or how to find it.
func HeldBy(path string) string {
	pid := sysfd.FlockHolder(path)
	if pid == 0 {
		return fmt.Sprintf("another process has %s (lslocks, or fuser %[1]s, names it)", path)
	}
	who := fmt.Sprintf("process %d", pid)
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(data) > 0 {
		command := strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
		who += fmt.Sprintf(" (%.*s)", maxCommand, command)
	}
	return fmt.Sprintf("%s has %s: end it, or give this berth a root directory of its own", who, path)
}
