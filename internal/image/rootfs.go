package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// A root filesystem is a directory Root/containers/<key> that holds
//
//	upper, work   what the container writes, for the overlay mount
//	volumes       what it writes elsewhere, see volume.go
//	image         the record: which snapshot is below
//
// and a mount on State/rootfs/<key>, or, where a user namespace must reach it, on
// State/mapped/<key>/rootfs (see mapped.go). The directory appears by rename,
// complete, so that no transaction of a database is needed, and it goes by rename,
// too. While it is there the snapshots below it stay, whatever happens to their
// image.
const (
	upperName  = "upper"
	workName   = "work"
	recordName = "image"
)

// use is the record of a root filesystem.
type use struct {
	Image string `json:"image"`
	Chain string `json:"chain"`
	// Storage is where upper, work and volumes are in place of the directory itself; see
	// storage.go.
	Storage string `json:"storage,omitempty"`

	lower []string
}

var keyPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

func checkKey(key string) error {
	if !keyPattern.MatchString(key) {
		return fmt.Errorf("root filesystem key %q: want letters, digits, '_', '.', '-': %w", key, errs.Invalid)
	}
	return nil
}

func (s *Images) containerDir(key string) string { return filepath.Join(s.containersDir(), key) }
func (s *Images) mountPath(key string) string    { return filepath.Join(s.mountsDir(), key) }

// Prepare implements Rootfs.
func (s *Images) Prepare(ctx context.Context, spec RootfsSpec) (*Mounted, error) {
	key := spec.Key
	if err := checkKey(key); err != nil {
		return nil, err
	}
	unlock, err := s.keys.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if spec.Storage != "" && spec.Map != nil {
		return nil, fmt.Errorf("cannot prepare the root filesystem of %s: what is kept in %s cannot be mapped: %w", key, spec.Storage, errs.Unsupported)
	}
	u, fresh, err := s.reserve(spec)
	if err != nil {
		return nil, err
	}
	path, err := s.mountRootfs(spec, u, fresh)
	if err != nil {
		err = fmt.Errorf("cannot prepare the root filesystem of %s: %w", key, diskError(err))
		if fresh {
			err = errors.Join(err, s.release(key))
		}
		return nil, err
	}
	return &Mounted{Path: path}, nil
}

// reserve keeps the snapshots of an image for a key, and a storage. fresh is false when
// the key has them already.
func (s *Images) reserve(spec RootfsSpec) (u use, fresh bool, err error) {
	key, imageID := spec.Key, spec.ImageID
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.uses.get(key); ok {
		if u.Image != imageID {
			return u, false, fmt.Errorf("root filesystem %s is made from image %s, not %s: %w", key, u.Image, imageID, errs.Exists)
		}
		return u, false, nil
	}
	e := s.index[imageID]
	if e == nil {
		return u, false, fmt.Errorf("image %q: %w", imageID, errs.NotFound)
	}
	if holder := s.uses.holder(spec.Storage); holder != "" {
		return u, false, fmt.Errorf("the storage %s is in use by the root filesystem of %s: %w", spec.Storage, holder, errs.State)
	}
	u = use{Image: e.ID, Chain: e.chain, Storage: spec.Storage, lower: e.lower}
	s.uses.add(key, u)
	return u, true, nil
}

func (s *Images) mountRootfs(spec RootfsSpec, u use, fresh bool) (string, error) {
	dir, target := s.containerDir(spec.Key), s.mountPath(spec.Key)
	if spec.Map != nil {
		target = s.mappedPath(spec.Key)
	}
	if fresh {
		if err := s.makeContainerDir(dir, u, spec.Map); err != nil {
			return "", err
		}
	} else if mounted, err := sysfile.IsMountPoint(target); err != nil || mounted {
		return target, err
	}
	if err := u.openStorage(); err != nil {
		return "", err
	}
	if len(u.lower) == 0 {
		return "", fmt.Errorf("the layers of image %s are gone: %w", u.Image, errs.NotFound)
	}
	overlay := sysfile.Overlay{
		LowerRoot: s.layersDir(),
		Lower:     u.lower,
		Upper:     filepath.Join(u.written(dir), upperName),
		Work:      filepath.Join(u.written(dir), workName),
		ReadOnly:  spec.ReadOnly,
		Label:     spec.MountLabel,
	}
	if spec.Map != nil {
		return target, s.mountMapped(spec, overlay)
	}
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return target, sysfile.MountOverlay(overlay, target)
}

// makeContainerDir makes the directory of a root filesystem. Its root directory
// belongs to the root of the namespace that sees it.
func (s *Images) makeContainerDir(dir string, u use, m *UserMap) error {
	record, err := json.Marshal(u)
	if err != nil {
		return err
	}
	ready, err := s.pool.take(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(ready, recordName), record, 0o600); err != nil {
		return err
	}
	if m != nil {
		if err := os.Chown(filepath.Join(ready, upperName), m.UID, m.GID); err != nil {
			return err
		}
	}
	return os.Rename(ready, dir)
}

// Release implements Rootfs.
func (s *Images) Release(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	unlock, err := s.keys.Lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.release(key); err != nil {
		return fmt.Errorf("cannot release the root filesystem of %s: %w", key, err)
	}
	return nil
}

// release unmounts and removes. The tree that the container wrote may be large: it
// is moved away, and removed in the background.
func (s *Images) release(key string) error {
	if err := s.unmountMapped(key); err != nil {
		return err
	}
	target := s.mountPath(key)
	if err := sysfile.Detach(target); err != nil {
		return err
	}
	if err := errs.IgnoreNotExist(os.Remove(target)); err != nil {
		return err
	}
	if err := s.discard(s.containerDir(key)); err != nil {
		return err
	}
	s.mu.Lock()
	u, last := s.uses.remove(key)
	s.mu.Unlock()
	if last {
		s.do(func(ctx context.Context) { s.dropUnused(ctx, u.Chain) })
	}
	return nil
}

// WritableUsage implements Rootfs.
func (s *Images) WritableUsage(ctx context.Context, key string, pace sysfile.Pace) (Usage, error) {
	if err := checkKey(key); err != nil {
		return Usage{}, err
	}
	used, err := sysfile.UsageOf(ctx, pace, s.writtenDirs(key)...)
	if errors.Is(err, os.ErrNotExist) {
		return Usage{}, fmt.Errorf("root filesystem %s: %w", key, errs.NotFound)
	}
	usage := Usage{Mountpoint: s.cfg.Root, Bytes: used.Bytes, Inodes: used.Inodes, At: time.Now()}
	if err != nil {
		return usage, fmt.Errorf("cannot tell what the container of %s has written: %w", key, err)
	}
	return usage, nil
}

// Keys implements Rootfs.
func (s *Images) Keys(context.Context) ([]string, error) {
	var keys []string
	for _, dir := range []string{s.containersDir(), s.mountsDir(), s.mappedDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("cannot list root filesystems: %w", err)
		}
		for _, entry := range entries {
			keys = append(keys, entry.Name())
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// uses are the root filesystems that there are and the snapshots that they need.
type uses struct {
	byKey map[string]use
	// counts are the root filesystems by the topmost snapshot below them.
	counts map[string]int
	// orphans are snapshots whose image was removed while they were used: a lease
	// keeps them.
	orphans map[string]bool
}

func newUses() uses {
	return uses{byKey: map[string]use{}, counts: map[string]int{}, orphans: map[string]bool{}}
}

func (u *uses) get(key string) (use, bool) {
	found, ok := u.byKey[key]
	return found, ok
}

func (u *uses) add(key string, added use) {
	u.byKey[key] = added
	u.counts[added.Chain]++
}

// holder is the root filesystem that has a storage, "" when none has.
func (u *uses) holder(storage string) string {
	if storage == "" {
		return ""
	}
	for key, use := range u.byKey {
		if use.Storage == storage {
			return key
		}
	}
	return ""
}

// remove forgets key. last tells that its snapshot is an orphan that nobody uses
// any more.
func (u *uses) remove(key string) (removed use, last bool) {
	removed, ok := u.byKey[key]
	if !ok {
		return removed, false
	}
	delete(u.byKey, key)
	if u.counts[removed.Chain]--; u.counts[removed.Chain] > 0 {
		return removed, false
	}
	delete(u.counts, removed.Chain)
	return removed, u.orphans[removed.Chain]
}

func (u *uses) count(chain string) int { return u.counts[chain] }
