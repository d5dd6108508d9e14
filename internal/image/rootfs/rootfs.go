// Package rootfs makes root filesystems of containers: overlay mounts over the layers of an
// image, or copies of these, also with mapped ids for user namespaces, and directories for what containers write.
package rootfs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/store"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysquota"
)

// A root filesystem is a directory Root/containers/<key> that holds
//
//	upper, work   what the container writes, for the overlay mount; upper is the whole tree of a copy, see copy.go
//	volumes       what it writes elsewhere, see volume.go
//	image         the record: which snapshot is below
//
// and a mount on State/rootfs/<key>, or, where a user namespace must reach it, on
// State/mapped/<key>/rootfs (see mapped.go). A rename makes the directory appear
// complete, and another one removes it, so no transaction of a database is needed. While it
// exists the snapshots below it stay, even if their image is removed.
const (
	upperName  = "upper"
	workName   = "work"
	recordName = "image"
)

var keyPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// maxKey is the length of the longest key. It is not in the pattern: a bounded repetition takes a thousand times as
// long to compile, in each process of berth.
const maxKey = 128

func checkKey(key string) error {
	if len(key) > maxKey || !keyPattern.MatchString(key) {
		return fmt.Errorf("root filesystem key %q: want letters, digits, '_', '.', '-': %w", key, errs.Invalid)
	}
	return nil
}

// Config of a manager.
type Config struct {
	Paths
	// Images have the layers, LayersDir has their directories.
	Images    *store.Store
	LayersDir string
	// Snapshotters are the proxy snapshotters that may have layers in their place.
	Snapshotters *snapshotters.Set
	// Copies has new root filesystems be copies of the layers, and no overlays.
	Copies bool
	// ReadyDirs is how many directories are made ahead, 0 for none.
	ReadyDirs int
	// FirstProject is the first of Projects ids of project quotas, 0 to use none; see project.go.
	FirstProject uint32
	// Discard removes a directory in the background.
	Discard    func(path string) error
	Background *background.Group
	Log        *slog.Logger
}

// Manager makes root filesystems. It has those methods of image.Rootfs that need the layers of images.
type Manager struct {
	Paths
	images     *store.Store
	layersDir  string
	proxies    *snapshotters.Set
	copies     bool // Config.Copies
	discard    func(path string) error
	background *background.Group
	log        *slog.Logger

	// mu guards uses and replaced.
	mu   sync.RWMutex
	uses map[string]use
	// replaced are the records of replaced files by their directories; see replaced.go.
	replaced map[string]replaced

	// mend is set by OnMissing.
	mend func(ctx context.Context, imageID string) error

	// copying has an element for each copy that is being made.
	copying  chan struct{}
	pool     dirPool
	projects projects
	// counted is projects.used, but in tests.
	counted func(dir string) (quota sysquota.Quota, ok bool, err error)
	// probes mount root filesystems of proxy snapshotters.
	probes probe.Pool
	// keys is held while the root filesystem of one key is changed.
	keys keyed.Mutex
}

// New makes a manager that knows no root filesystem before Load. The directories of its paths
// exist; see Paths.MakeDirs.
func New(cfg Config) *Manager {
	m := &Manager{
		Paths: cfg.Paths, images: cfg.Images, layersDir: cfg.LayersDir, proxies: cfg.Snapshotters, copies: cfg.Copies, discard: cfg.Discard, background: cfg.Background, log: cfg.Log,
		uses: map[string]use{}, replaced: map[string]replaced{}, copying: make(chan struct{}, maxCopies), pool: dirPool{size: cfg.ReadyDirs},
		projects: projects{parent: cfg.ContainersDir(), first: cfg.FirstProject, log: cfg.Log},
	}
	m.counted = m.projects.used
	return m
}

// Prepare implements image.Rootfs.
func (m *Manager) Prepare(ctx context.Context, spec image.RootfsSpec) (*image.Mounted, error) {
	key := spec.Key
	if err := checkKey(key); err != nil {
		return nil, err
	}
	unlock, err := m.keys.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if spec.Storage != "" && spec.Map != nil {
		return nil, fmt.Errorf("cannot prepare the root filesystem of %s: what is kept in %s cannot be mapped: %w", key, spec.Storage, errs.Unsupported)
	}
	path, err := m.makeOrMend(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &image.Mounted{Path: path}, nil
}

// make is Prepare while the key is locked. It also returns what it has used.
func (m *Manager) make(ctx context.Context, spec image.RootfsSpec) (path string, u use, err error) {
	u, fresh, err := m.reserve(spec)
	if err != nil {
		return "", u, err
	}
	path, err = m.mountRootfs(ctx, spec, u, fresh)
	if err != nil {
		err = fmt.Errorf("cannot prepare the root filesystem of %s: %w", spec.Key, errs.OfDisk(err))
		if fresh {
			err = errors.Join(err, m.release(spec.Key))
		}
	}
	return path, u, err
}

// reserve keeps the layers of an image for a key, and a storage. fresh is false when
// the key has them already.
func (m *Manager) reserve(spec image.RootfsSpec) (u use, fresh bool, err error) {
	key, imageID := spec.Key, spec.ImageID
	m.mu.Lock()
	defer m.mu.Unlock()
	if u, ok := m.uses[key]; ok {
		if u.Image != imageID && u.Image != "" { // a record that was made again does not name it
			return u, false, fmt.Errorf("root filesystem %s is made from image %s, not %s: %w", key, u.Image, imageID, errs.Exists)
		}
		return u, false, nil
	}
	wanted := spec.Snapshotter
	if !m.canBeOf(wanted, spec) {
		wanted = ""
	}
	layers, err := m.images.AcquireLayers(imageID, wanted)
	if err != nil {
		return u, false, err
	}
	if layers.Proxy != "" {
		if !m.canBeOf(layers.Proxy, spec) {
			return u, false, fmt.Errorf("only the snapshotter %s has the layers of image %s, and %s; pull the image with 'berth image pull', which unpacks it: %w", layers.Proxy, imageID, m.whyNotOf(layers.Proxy), errs.Unsupported)
		}
	}
	if holder := m.holder(spec.Storage); holder != "" {
		if layers.Proxy == "" {
			m.images.ReleaseLayers(layers.Chain)
		}
		return u, false, fmt.Errorf("the storage %s is in use by the root filesystem of %s: %w", spec.Storage, holder, errs.State)
	}
	u = use{Image: layers.ImageID, Chain: layers.Chain, Proxy: layers.Proxy, Storage: spec.Storage, lower: layers.Lower}
	m.uses[key] = u
	return u, true, nil
}

// holder is the root filesystem that has a storage, "" when none has. m.mu is held.
func (m *Manager) holder(storage string) string {
	if storage == "" {
		return ""
	}
	for key, use := range m.uses {
		if use.Storage == storage {
			return key
		}
	}
	return ""
}

// use returns the record of a root filesystem.
func (m *Manager) use(key string) (use, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	u, ok := m.uses[key]
	return u, ok
}

// forget takes a root filesystem from the records, and releases its layers.
func (m *Manager) forget(key string) {
	m.mu.Lock()
	u, ok := m.uses[key]
	delete(m.uses, key)
	err := m.dropReplaced(key)
	m.mu.Unlock()
	if err != nil {
		m.log.Warn("cannot remove what only a released root filesystem had; the next start tries it again", "key", key, "error", err)
	}
	switch {
	case ok && u.Proxy != "":
		if own := m.proxies.Own(u.Proxy); own != nil {
			own.Drop(key)
		}
		m.proxies.Wake() // its snapshot, and the layers below it, may be of no use now
	case ok:
		m.images.ReleaseLayers(u.Chain)
	}
}

func (m *Manager) mountRootfs(ctx context.Context, spec image.RootfsSpec, u use, fresh bool) (string, error) {
	dir, target := m.containerDir(spec.Key), m.mountPath(spec.Key)
	if spec.Map != nil {
		target = m.mappedPath(spec.Key)
	}
	if !fresh {
		if mounted, err := sysmount.IsMountPoint(target); err != nil || mounted {
			return target, err
		}
	}
	u, err := m.withMounts(ctx, spec.Key, u)
	if err != nil {
		return "", err
	}
	if fresh {
		if u, err = m.makeContainerDir(ctx, dir, u, spec); err != nil {
			return "", err
		}
	}
	if u.Proxy != "" && m.proxies.Own(u.Proxy) == nil {
		return target, m.mountProxy(ctx, spec, u, target)
	}
	if u.Copied != nil {
		return target, m.mountCopy(ctx, spec, u, target)
	}
	if u.Storage != "" {
		if _, err := m.openStorage(ctx, spec, u, false); err != nil {
			return "", err
		}
	}
	if len(u.lower) == 0 {
		return "", u.layersGone()
	}
	overlay := sysmount.Overlay{
		LowerRoot: cmp.Or(u.lowerRoot, m.layersDir),
		Lower:     u.lower,
		Upper:     filepath.Join(u.written(dir), upperName),
		Work:      filepath.Join(u.written(dir), workName),
		ReadOnly:  spec.ReadOnly,
		Label:     spec.MountLabel,
	}
	if spec.Map != nil {
		return target, m.mountMapped(spec, u, overlay)
	}
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return target, sysmount.MountOverlay(overlay, target)
}

// makeContainerDir makes the directory of a root filesystem, and its copy if it is to be one. The root directory
// belongs to the root of the namespace that sees it.
func (m *Manager) makeContainerDir(ctx context.Context, dir string, u use, spec image.RootfsSpec) (_ use, err error) {
	ready, err := m.pool.take(m)
	if err != nil {
		return u, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.discardDir(ready))
		}
	}()
	if m.copies && u.Proxy == "" {
		if u.Copied, err = m.fill(ctx, spec, u, ready); err != nil {
			return u, err
		}
	} else if err := m.describeRoot(spec, u, filepath.Join(ready, upperName)); err != nil {
		return u, err
	}
	record, err := json.Marshal(u)
	if err != nil {
		return u, err
	}
	if err := os.WriteFile(filepath.Join(ready, recordName), record, 0o600); err != nil {
		return u, err
	}
	if spec.Limit > 0 {
		if err := m.projects.limit(ready, u.Copied, spec.Limit); err != nil {
			return u, fmt.Errorf("cannot limit it to %d bytes: %w", spec.Limit, err)
		}
	}
	m.mu.Lock()
	m.uses[spec.Key] = u
	m.mu.Unlock()
	return u, os.Rename(ready, dir)
}

// Release implements image.Rootfs.
func (m *Manager) Release(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	unlock, err := m.keys.Lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.release(key); err != nil {
		return fmt.Errorf("cannot release the root filesystem of %s: %w", key, err)
	}
	return nil
}

// release unmounts and removes. The tree that the container wrote may be large: it
// is moved away, and removed in the background.
func (m *Manager) release(key string) error {
	if err := m.unmountMapped(key); err != nil {
		return err
	}
	target := m.mountPath(key)
	if err := sysmount.Detach(target); err != nil {
		return err
	}
	if err := errs.IgnoreNotExist(os.Remove(target)); err != nil {
		return err
	}
	if err := m.discardDir(m.containerDir(key)); err != nil {
		return err
	}
	u, _ := m.use(key)
	m.forget(key)
	if u.Copied != nil && u.Copied.Shared != "" {
		m.dropShared(u.Copied.Shared)
	}
	return nil
}

// discardDir removes the directory of a root filesystem, or one of the pool, in the background. Nil when there is none.
func (m *Manager) discardDir(dir string) error {
	m.projects.drop(dir)
	return m.discard(dir)
}

// WritableUsage implements image.Rootfs.
func (m *Manager) WritableUsage(ctx context.Context, key string, pace sysfile.Pace) (image.Usage, error) {
	if err := checkKey(key); err != nil {
		return image.Usage{}, err
	}
	used, err := m.writtenUsage(ctx, key, pace)
	if errors.Is(err, os.ErrNotExist) {
		return image.Usage{}, fmt.Errorf("root filesystem %s: %w", key, errs.NotFound)
	}
	usage := image.Usage{Mountpoint: m.Root, Bytes: used.Bytes, Inodes: used.Inodes, At: time.Now()}
	if err != nil {
		return usage, fmt.Errorf("cannot measure what the container of %s has written: %w", key, err)
	}
	return usage, nil
}

// describeRoot gives the upper directory of an overlay what the image says of its root directory: the kernel shows the
// attributes of the topmost directory.
func (m *Manager) describeRoot(spec image.RootfsSpec, u use, upper string) error {
	if err := m.copyRoot(u, upper); err != nil {
		return err
	}
	if spec.Map == nil {
		return nil
	}
	return os.Chown(upper, spec.Map.UID, spec.Map.GID)
}

// copyRoot gives a directory the attributes of the image's root directory. Those of old layers are not known: the directory stays
// as it is.
func (m *Manager) copyRoot(u use, to string) error {
	if len(u.lower) == 0 {
		return nil
	}
	top := filepath.Join(cmp.Or(u.lowerRoot, m.layersDir), u.lower[0])
	if u.Proxy != "" { // layers of berth's own snapshotter all have these attributes
	} else if label, err := database.ReadLayerLabel(filepath.Dir(top)); err != nil || !label.Root {
		return nil //nolint:nilerr // without a label it is an old layer
	}
	if err := sysfile.CopyAttributes(top, to); err != nil {
		return fmt.Errorf("cannot copy the attributes of the root directory: %w", err)
	}
	return nil
}
