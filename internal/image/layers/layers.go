// Package layers unpacks the layers of images into snapshots, in a confined helper, several
// at a time. It copies the files of artifacts into one. It unpacks again the layers that a loss of
// power may have damaged.
package layers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/database/growing"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Config of an unpacker.
type Config struct {
	DB *database.DB
	// Runner starts the helper.
	Runner *unpack.Runner
	// WhiteoutFiles has layers say in the form of archives what they delete: no overlay is mounted over them.
	WhiteoutFiles bool
	Background    *background.Group
	Log           *slog.Logger
}

// Unpacker unpacks layers. Its methods are safe for concurrent use.
type Unpacker struct {
	db          *database.DB
	runner      *unpack.Runner
	whiteouts   bool // Config.WhiteoutFiles
	background  *background.Group
	log         *slog.Logger
	unsyncedDir string
	syncs       syncs
	// syncFS is sysfile.SyncFS. syncFailed is set once it has failed in this boot.
	syncFS     func(path string) error
	syncFailed atomic.Bool
	maxLayer   atomic.Int64
	// decryptionKeys is the directory of the private keys.
	decryptionKeys atomic.Pointer[string]
	// chains are held from before a layer is unpacked until it is committed.
	chains  keyed.Mutex
	holders holders
	claims  claims
	// early has room for the helpers that unpack layers while these are fetched.
	early    chan struct{}
	attempts attempts
}

// UnsyncedDir is the directory below a store's root with the lists of unsynced layers.
func UnsyncedDir(root string) string { return filepath.Join(root, "unsynced") }

// New makes an unpacker. UnsyncedDir exists.
func New(cfg Config) *Unpacker {
	u := &Unpacker{
		db: cfg.DB, runner: cfg.Runner, whiteouts: cfg.WhiteoutFiles, background: cfg.Background, log: cfg.Log, unsyncedDir: UnsyncedDir(cfg.DB.Root), syncFS: sysfile.SyncFS,
		holders: holders{of: map[string]*batch{}, waiting: map[string]int{}}, early: make(chan struct{}, maxEarly),
	}
	u.SetDecryptionKeys("")
	return u
}

// SetMaxLayer bounds the bytes of one layer's archive, unpacked, for layers that are unpacked
// from now on.
func (u *Unpacker) SetMaxLayer(bytes int64) { u.maxLayer.Store(bytes) }

// Unpack makes the snapshots of an image that are not there yet, lowest
// first. ready waits until content has layer i; unpacked gets the bytes as they
// are unpacked, a negative number when some must be unpacked again. The node's keys must
// open all encrypted layers of the image, also if they are there already.
func (u *Unpacker) Unpack(ctx context.Context, t *tree.Tree, ready func(ctx context.Context, i int) error, unpacked func(n int64)) error {
	return u.UnpackEarly(ctx, t, ready, nil, unpacked)
}

// UnpackEarly is Unpack for layers that are fetched meanwhile. files are those of the layers,
// nil for a layer that is unpacked from its blob, or for all.
func (u *Unpacker) UnpackEarly(
	ctx context.Context, t *tree.Tree, ready func(ctx context.Context, i int) error, files []*growing.File, unpacked func(n int64),
) error {
	defer u.runner.Hold()() // of which a process starts for each layer
	secrets, err := u.secretsOf(ctx, t)
	if err != nil {
		return err
	}
	chains := t.Chains()
	job := &unpacking{Unpacker: u, t: t, names: chains, secrets: secrets, ready: ready, growing: make([]*growing.File, len(chains)), unpacked: unpacked}
	if t.Artifact == nil {
		copy(job.growing, files)
	}
	claimed, release := u.claims.take(chains)
	defer release()
	there, keys, err := u.db.KeepOrPrepare(ctx, chains, claimed)
	if err != nil {
		return err
	}
	if there[chains[len(chains)-1]] { // so the others are, too
		return job.reuseAll(ctx, ready)
	}
	done, err := u.listUnsynced(chains)
	if err != nil {
		return errors.Join(err, u.db.RemoveActive(context.WithoutCancel(ctx), keys))
	}
	defer done()
	job.batch = newBatch(len(chains), keys)
	err = job.all(ctx)
	job.batch.close()
	return errors.Join(err, u.db.RemoveActive(context.WithoutCancel(ctx), job.batch.keys))
}

// all unpacks and commits all layers.
func (u *unpacking) all(ctx context.Context) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		return errs.Guard("committing of layers", func() error { return u.commitAll(ctx) })
	})
	both.Go(func() error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(unpackers)
		for i := range u.names {
			group.Go(func() error {
				if err := u.await(ctx, i); err != nil {
					return err
				}
				err := errs.Guard("unpacking of "+u.t.SourceOf(i), func() error { return u.layer(ctx, i) })
				if err != nil {
					return fmt.Errorf("cannot unpack %s: %w", u.t.SourceOf(i), errs.OfDisk(err))
				}
				return nil
			})
		}
		return group.Wait()
	})
	return both.Wait()
}

// awaitAll waits until content has all that snapshot i is made from.
func awaitAll(ctx context.Context, t *tree.Tree, i int, ready func(ctx context.Context, i int) error) error {
	for _, n := range t.LayersOf(i) {
		if err := ready(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// unpackers is how many layers of one image are unpacked side by side.
const unpackers = 2

// unpacking is an image whose layers are being unpacked, each by itself, and committed
// in order. A layer that cannot be unpacked without the layers below it waits for them.
type unpacking struct {
	*Unpacker
	t       *tree.Tree
	names   []string // of the snapshots, lowest first
	secrets []*unpack.Secret
	ready   func(ctx context.Context, i int) error
	// growing are the files of layers that are unpacked while they are fetched, nil for the others.
	growing  []*growing.File
	unpacked func(int64)
	// batch is nil unless new layers are unpacked.
	batch *batch
}

// below waits for the snapshot under layer i and returns its name.
func (u *unpacking) below(ctx context.Context, i int) (string, error) {
	if i == 0 {
		return "", nil
	}
	u.batch.want(i)
	select {
	case <-u.batch.committed[i-1]:
		return u.names[i-1], nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// layer unpacks layer i, and adds it to the batch. Two images with the same layer unpack it once.
func (u *unpacking) layer(ctx context.Context, i int) error {
	if u.file(i) != nil {
		if err := u.layerEarly(ctx, i); !errors.Is(err, errEarly) {
			return err
		}
		u.growing[i] = nil
		if err := u.await(ctx, i); err != nil {
			return err
		}
	}
	u.attempts.await(ctx, u.names[i])
	unlock, err := u.lock(ctx, u.names[i])
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			unlock()
		}
	}()
	layer, err := u.locked(ctx, i)
	if err != nil {
		return err
	}
	layer.unlock, kept = unlock, true
	u.batch.add(i, layer)
	return nil
}

// locked is layer while the chain is locked.
func (u *unpacking) locked(ctx context.Context, i int) (*unpacked, error) {
	there, err := u.db.HasSnapshot(ctx, u.names[i])
	if err != nil {
		return nil, err
	}
	if there {
		return &unpacked{}, u.reuse(ctx, i, func(context.Context, int) error { return nil })
	}
	layer, err := u.alone(ctx, i)
	if err != nil || layer != nil {
		return layer, err
	}
	parent, err := u.below(ctx, i)
	if err != nil {
		return nil, err
	}
	return &unpacked{}, u.filled(ctx, i, parent, u.whiteouts, func(key string, root bool) error { return u.commitOne(ctx, i, parent, key, root) })
}

// filled calls fn with a snapshot into which layer i is unpacked over the snapshot parent, and whether it describes the root
// directory. It is removed unless fn commits it.
func (u *unpacking) filled(ctx context.Context, i int, parent string, whiteoutFiles bool, fn func(key string, root bool) error) error {
	for as := (manner{whiteoutFiles: whiteoutFiles}); ; as.whole = true {
		needs := false
		err := u.db.WithSnapshot(ctx, parent, func(key string) error {
			result, err := u.fill(ctx, i, key, parent, as)
			if needs = result.NeedsFiles && !as.whole; err != nil || needs {
				return err
			}
			return fn(key, result.Root)
		})
		if err != nil || !needs {
			return err
		}
	}
}

// alone unpacks layer i without the layers below. It returns nil when it cannot.
func (u *unpacking) alone(ctx context.Context, i int) (*unpacked, error) {
	key, err := u.empty(ctx)
	if err != nil {
		return nil, err
	}
	result, err := u.fill(ctx, i, key, "", manner{alone: i > 0, whiteoutFiles: u.whiteouts})
	if err != nil || result.NeedsLower {
		return nil, err
	}
	info, err := u.db.Snapshots.Stat(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("cannot look up a snapshot: %w", err)
	}
	layer := &unpacked{key: key, upper: database.UpperDir(info), result: result}
	if used := result.Usage; used != nil {
		layer.usage = snapshots.Usage{Size: used.Bytes, Inodes: used.Inodes}
		return layer, nil
	}
	layer.usage, err = database.UsageOf(ctx, layer.upper)
	return layer, err
}

// freshRoot gives the directory of a snapshot the mode that a root directory has which no layer describes, whatever the umask.
func (u *unpacking) freshRoot(ctx context.Context, key string) error {
	info, err := u.db.Snapshots.Stat(ctx, key)
	if err != nil {
		return fmt.Errorf("cannot look up a snapshot: %w", err)
	}
	return os.Chmod(database.UpperDir(info), 0o755) //nolint:gosec // of a container
}

// commitOne makes the snapshot key that of layer i. The chain is locked.
func (u *unpacking) commitOne(ctx context.Context, i int, parent, key string, root bool) error {
	root, err := u.describesRoot(ctx, parent, root)
	if err != nil {
		return err
	}
	label := database.LayerLabel{Chain: u.names[i], Parent: parent, Sources: u.sources(i), WhiteoutFiles: u.whiteouts, Root: root}
	return u.db.CommitSnapshot(ctx, label, key)
}

// describesRoot reports whether a layer over parent has the attributes of the image's root directory: by itself (root), or from
// the layer below.
func (u *unpacking) describesRoot(ctx context.Context, parent string, root bool) (bool, error) {
	if root || parent == "" {
		return true, nil
	}
	return u.db.KnowsRoot(ctx, parent)
}

// manner is the way in which a layer is unpacked; see unpack.Job.
type manner struct{ alone, whiteoutFiles, whole bool }

// fill unpacks layer i into the snapshot key. NeedsLower is set when the layer is to be unpacked alone, and
// cannot be unpacked without the layers below.
func (u *unpacking) fill(ctx context.Context, i int, key, parent string, as manner) (result unpack.Result, err error) {
	if err := u.freshRoot(ctx, key); err != nil {
		return result, err
	}
	if u.t.Artifact != nil {
		return result, u.fillArtifact(ctx, key)
	}
	job, done, err := u.job(ctx, key, parent, as)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, done()) }()
	job.Alone, job.Secret, job.LayerSize = as.alone, u.secrets[i], u.t.Layers[i].Size
	result, err = u.run(ctx, i, job)
	if errors.Is(err, errEarly) {
		u.dropFiles(ctx, i, job.Upper)
	}
	if err != nil || result.NeedsLower || result.NeedsFiles {
		return result, err
	}
	if want := u.t.Image.RootFS.DiffIDs[i].String(); result.DiffID != want {
		return result, fmt.Errorf("its content has digest %s, the image's config says %s: %w", result.DiffID, want, errs.Invalid)
	}
	if i == 0 && !result.Root {
		return result, os.Chtimes(job.Upper, time.Unix(0, 0), time.Unix(0, 0)) // the same each time
	}
	return result, nil
}

// run has the helper unpack layer i. The blob of the layer is verified when run has succeeded.
func (u *unpacking) run(ctx context.Context, i int, job unpack.Job) (result unpack.Result, err error) {
	var seen int64
	defer func() {
		if err != nil || result.NeedsLower || result.NeedsFiles {
			u.unpacked(-seen)
		} else {
			u.unpacked(u.t.Layers[i].Size - seen)
		}
	}()
	if file := u.file(i); file != nil {
		return u.runEarly(ctx, i, job, file, func(n int64) { u.unpacked(n); seen += n })
	}
	blob, err := u.db.OpenBlob(u.t.Layers[i].Digest)
	if err != nil {
		return result, err
	}
	defer blob.Close()
	return u.runner.Run(ctx, job, blob, func(offset int64) { u.unpacked(offset - seen); seen = offset })
}

// job is the job of a snapshot. done removes what was made for it.
func (u *Unpacker) job(ctx context.Context, key, parent string, as manner) (job unpack.Job, done func() error, err error) {
	info, err := u.db.Snapshots.Stat(ctx, key)
	if err != nil {
		return job, nil, fmt.Errorf("cannot look up a snapshot: %w", err)
	}
	lower, err := u.db.LowerDirs(ctx, parent)
	if err != nil {
		return job, nil, err
	}
	free, err := sysfile.DiskFree(u.db.Root)
	if err != nil {
		return job, nil, err
	}
	upper := database.UpperDir(info)
	job = unpack.Job{
		Upper:         upper,
		LowerRoot:     u.db.LayersDir(),
		Lower:         lower,
		WhiteoutFiles: as.whiteoutFiles,
		Whole:         as.whole,
		MaxBytes:      free,
		MaxLayer:      u.maxLayer.Load(),
	}
	if !as.whiteoutFiles || len(lower) == 0 {
		return job, func() error { return nil }, nil
	}
	job.LowerRoot, job.Lower = filepath.Dir(upper), []string{belowName}
	below := filepath.Join(job.LowerRoot, belowName)
	return job, func() error { return sysfile.RemoveTree(context.WithoutCancel(ctx), below) }, u.copyBelow(ctx, lower, below, as.whole)
}

// belowName is a directory beside the files of a layer while these are unpacked, with the directories of the layers below and the
// links to them: a layer whose deletions are files takes from those below only attributes of directories, as long as it
// has no other name of a file of these. A kill leaves it in a directory
// that the next start removes.
const belowName = "below"

// copyBelow copies the directories and links of layers, and with whole all files.
func (u *Unpacker) copyBelow(ctx context.Context, lower []string, to string, whole bool) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	dirs := make([]string, len(lower))
	for i, dir := range lower {
		dirs[i] = filepath.Join(u.db.LayersDir(), dir)
	}
	if err := sysfile.CopyLayers(ctx, dirs, to, sysfile.LayersCopy{Directories: !whole}); err != nil {
		return err
	}
	return sysfile.CopyAttributes(dirs[0], to)
}
