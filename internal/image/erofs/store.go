// Package erofs keeps the layers of images as read-only EROFS images, which the kernel mounts. It has the methods by which
// package snapshotters uses a proxy snapshotter of containerd, and runs no program.
//
//	Root/layers/N/layer.erofs   the image of a layer; N is a number, since overlays of many layers need short paths
//	Root/layers/N/record        its record, which is on disk before the directory gets its name
//	Root/new/NAME/files         a layer that is being unpacked
//	State/N                     the mount of layer N, from the first root filesystem on that needs it
//
// A root filesystem is an overlay of these mounts, which package rootfs makes. The overlay has its own reference to each of
// them. They stay mounted in State so that all containers of a layer share what the kernel has cached of it: the kernel shares
// nothing between two mounts of one file.
package erofs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/erofs/writer"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	imageName  = "layer.erofs"
	recordName = "record"
	filesName  = "files"

	// rootfsPrefix begins the names by which Walk lists root filesystems, as snapshots over their layers.
	rootfsPrefix = "rootfs/"
)

// Paths are the directories of a store.
type Paths struct {
	// Root is on disk, State on tmpfs.
	Root, State string
}

// LayersDir has a directory for each layer.
func (p Paths) LayersDir() string { return filepath.Join(p.Root, "layers") }

// ImageFile is the image of the layer in a directory of LayersDir, RecordFile its record.
func ImageFile(dir string) string  { return filepath.Join(dir, imageName) }
func RecordFile(dir string) string { return filepath.Join(dir, recordName) }

func (p Paths) newDir() string            { return filepath.Join(p.Root, "new") }
func (p Paths) layerDir(id string) string { return filepath.Join(p.LayersDir(), id) }
func (p Paths) mountOf(id string) string  { return filepath.Join(p.State, id) }

// Config of a store.
type Config struct {
	Paths
	// Discard removes a directory in the background.
	Discard func(path string) error
	Log     *slog.Logger
}

// record is what is on disk of a layer.
type record struct {
	Chain  string `json:"chain"`
	Parent string `json:"parent,omitempty"`
	// Size and Modified are those of the image's file.
	Size     int64 `json:"size"`
	Modified int64 `json:"modified"`
	// Digest is that by which fs-verity knows the content. Verity is set if the kernel compares with it what it reads.
	Digest string `json:"digest"`
	Verity bool   `json:"verity,omitempty"`
}

type layer struct {
	record
	id    string
	bytes int64 // on disk
}

// Store has the layers. Its methods are safe for concurrent use.
type Store struct {
	Paths
	discard func(string) error
	log     *slog.Logger
	// mounts are held, by the id of a layer, while it is mounted or unmounted.
	mounts keyed.Mutex
	// writing is held while an image is written: that takes the whole disk, and the names of all files in memory.
	writing keyed.Mutex

	mu     sync.Mutex // guards what follows
	layers map[string]*layer
	// active are the parents of layers that are unpacked, by their keys.
	active map[string]string
	// uses are the layers below root filesystems and unpacked layers, topmost first, by their keys. counts are the uses of each.
	uses   map[string][]*layer
	counts map[string]int
	next   int
}

// Open reads which layers there are. It drops those that a process which was killed has not finished, those without a sound
// record, and all above them. It makes no directory. No other process uses the directories.
func Open(cfg Config) (*Store, error) {
	s := &Store{
		Paths: cfg.Paths, discard: cfg.Discard, log: cfg.Log,
		layers: map[string]*layer{}, active: map[string]string{}, uses: map[string][]*layer{}, counts: map[string]int{}, next: 1,
	}
	if err := s.dropAll(s.newDir()); err != nil {
		return nil, err
	}
	entries, err := readDir(s.LayersDir())
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		number, err := strconv.Atoi(entry)
		l, readErr := s.read(entry)
		if err = errors.Join(err, readErr); err == nil && s.layers[l.Chain] != nil {
			err = fmt.Errorf("%s is the same layer: %w", s.layers[l.Chain].id, errs.Exists)
		}
		if err != nil {
			s.log.Warn("dropping a layer of the erofs snapshotter that cannot be used; the images with it are pulled again", "directory", s.layerDir(entry), "error", err)
			if err := s.discard(s.layerDir(entry)); err != nil {
				return nil, err
			}
			continue
		}
		s.layers[l.Chain], s.next = l, max(s.next, number+1)
	}
	mounted, err := readDir(s.State)
	if err != nil {
		return nil, err
	}
	for _, entry := range mounted { // a layer with such a number may have been removed
		if number, err := strconv.Atoi(entry); err == nil {
			s.next = max(s.next, number+1)
		}
	}
	for chain, l := range s.layers {
		if l.Parent != "" && s.layers[l.Parent] == nil {
			s.dropAbove(chain)
		}
	}
	return s, nil
}

func readDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errs.IgnoreNotExist(err)
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, nil
}

func (s *Store) dropAll(dir string) error {
	entries, err := readDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, s.discard(filepath.Join(dir, entry)))
	}
	return err
}

// read reads the layer in a directory.
func (s *Store) read(id string) (*layer, error) {
	l := &layer{id: id}
	data, err := database.ReadOwn(RecordFile(s.layerDir(id)))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &l.record); err != nil {
		return nil, fmt.Errorf("cannot read its record: %w", err)
	}
	st, err := statImage(ImageFile(s.layerDir(id)))
	switch {
	case err != nil:
		return nil, err
	case l.Chain == "" || l.Digest == "":
		return nil, fmt.Errorf("its record names no layer, or no digest: %w", errs.Invalid)
	case st.size != l.Size:
		return nil, fmt.Errorf("%s has %d bytes, and had %d: %w", imageName, st.size, l.Size, errs.Invalid)
	}
	l.bytes = st.bytes
	return l, nil
}

// dropAbove drops a layer and all above it, and returns their ids. s.mu is held, or nobody has s yet.
func (s *Store) dropAbove(chain string) (ids []string) {
	l := s.layers[chain]
	if l == nil {
		return nil
	}
	delete(s.layers, chain)
	for above, other := range s.layers {
		if other.Parent == chain {
			ids = append(ids, s.dropAbove(above)...)
		}
	}
	if err := s.discard(s.layerDir(l.id)); err != nil {
		s.log.Warn("cannot remove a layer of the erofs snapshotter; the next start removes it", "directory", s.layerDir(l.id), "error", err)
	}
	return append(ids, l.id)
}

// Stat implements snapshots.Snapshotter for committed snapshots, whose names are chains, and for layers that are unpacked.
func (s *Store) Stat(_ context.Context, name string) (snapshots.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.layers[name]; l != nil {
		return snapshots.Info{Kind: snapshots.KindCommitted, Name: name, Parent: l.Parent}, nil
	}
	if parent, ok := s.active[name]; ok {
		return snapshots.Info{Kind: snapshots.KindActive, Name: name, Parent: parent}, nil
	}
	return snapshots.Info{}, fmt.Errorf("snapshot %s: %w", name, errdefs.ErrNotFound)
}

// Walk implements snapshots.Snapshotter. It lists the root filesystems, too: layers below them are in use.
func (s *Store) Walk(ctx context.Context, fn snapshots.WalkFunc, _ ...string) error {
	s.mu.Lock()
	var all []snapshots.Info
	for name, l := range s.layers {
		all = append(all, snapshots.Info{Kind: snapshots.KindCommitted, Name: name, Parent: l.Parent})
	}
	for key, parent := range s.active {
		all = append(all, snapshots.Info{Kind: snapshots.KindActive, Name: key, Parent: parent})
	}
	for key, below := range s.uses {
		if strings.HasPrefix(key, rootfsPrefix) && len(below) > 0 {
			all = append(all, snapshots.Info{Kind: snapshots.KindActive, Name: key, Parent: below[0].Chain})
		}
	}
	s.mu.Unlock()
	for _, info := range all {
		if err := fn(ctx, info); err != nil {
			return err
		}
	}
	return nil
}

// Prepare implements snapshots.Snapshotter for a layer that is to be unpacked over its parent, "" for none.
func (s *Store) Prepare(ctx context.Context, key, parent string, _ ...snapshots.Opt) (_ []mount.Mount, err error) {
	s.mu.Lock()
	_, there := s.active[key]
	if !there {
		s.active[key] = parent
	}
	s.mu.Unlock()
	if there {
		return nil, fmt.Errorf("snapshot %s: %w", key, errdefs.ErrAlreadyExists)
	}
	defer func() {
		if err != nil {
			err = errors.Join(errs.OfDisk(err), s.Remove(context.WithoutCancel(ctx), key))
		}
	}()
	files := filepath.Join(s.fillDir(key), filesName)
	if err := os.MkdirAll(s.newDir(), 0o700); err != nil {
		return nil, err
	}
	if err := s.discard(s.fillDir(key)); err != nil {
		return nil, err
	}
	for _, dir := range []string{s.fillDir(key), files} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(files, 0o755); err != nil { //nolint:gosec // of a container
		return nil, err
	}
	if parent != "" {
		if _, err := s.use(ctx, key, parent); err != nil {
			return nil, err
		}
	}
	return s.Mounts(ctx, key)
}

// Mounts implements snapshots.Snapshotter for a layer that is to be unpacked.
func (s *Store) Mounts(_ context.Context, key string) ([]mount.Mount, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.active[key]; !ok {
		return nil, fmt.Errorf("snapshot %s: %w", key, errdefs.ErrNotFound)
	}
	files := filepath.Join(s.fillDir(key), filesName)
	if len(s.uses[key]) == 0 {
		return []mount.Mount{{Type: "bind", Source: files, Options: []string{"rw", "rbind"}}}, nil
	}
	var lower []string
	for _, l := range s.uses[key] {
		lower = append(lower, s.mountOf(l.id))
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + strings.Join(lower, ":"), "upperdir=" + files}}}, nil
}

// fillDir is the directory of a layer that is unpacked.
func (s *Store) fillDir(key string) string {
	return filepath.Join(s.newDir(), strings.NewReplacer("/", "-", ":", "-").Replace(key))
}

// Commit implements snapshots.Snapshotter: it makes an image of what was unpacked.
func (s *Store) Commit(ctx context.Context, name, key string, _ ...snapshots.Opt) error {
	s.mu.Lock()
	parent, ok := s.active[key]
	_, there := s.layers[name]
	s.mu.Unlock()
	switch {
	case !ok:
		return fmt.Errorf("snapshot %s: %w", key, errdefs.ErrNotFound)
	case there:
		return fmt.Errorf("snapshot %s: %w", name, errdefs.ErrAlreadyExists)
	}
	unlock, err := s.writing.Lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	l, err := s.write(ctx, s.fillDir(key), record{Chain: name, Parent: parent})
	if err != nil {
		return fmt.Errorf("cannot make the EROFS image of a layer: %w", errs.OfDisk(err))
	}
	s.mu.Lock()
	lost := parent != "" && s.layers[parent] == nil
	if !lost {
		s.layers[name] = l
		delete(s.active, key)
	}
	s.mu.Unlock()
	if lost {
		err := fmt.Errorf("the layer %s, which is below it, was dropped meanwhile; pull the image again: %w", parent, errs.Unavailable)
		return errors.Join(err, s.discard(s.layerDir(l.id)))
	}
	s.drop(key)
	return nil
}

// write makes the directory of an unpacked layer that of a layer.
func (s *Store) write(ctx context.Context, dir string, r record) (*layer, error) {
	files := filepath.Join(dir, filesName)
	file, err := os.OpenFile(ImageFile(dir), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	err = writer.Write(ctx, file, files)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if err := s.discard(files); err != nil {
		return nil, err
	}
	if err := seal(ctx, ImageFile(dir), &r); err != nil {
		return nil, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if err := sysfile.WriteSynced(RecordFile(dir), data); err != nil {
		return nil, err
	}
	st, err := statImage(ImageFile(dir))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(s.LayersDir(), 0o700), sysfile.SyncDir(dir)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	l := &layer{record: r, id: strconv.Itoa(s.next), bytes: st.bytes}
	s.next++
	s.mu.Unlock()
	if err := os.Rename(dir, s.layerDir(l.id)); err != nil {
		return nil, err
	}
	return l, sysfile.SyncDir(s.LayersDir())
}

// Remove implements snapshots.Snapshotter. A layer that another one, or a root filesystem, is over is not removed.
func (s *Store) Remove(_ context.Context, name string) error {
	if strings.HasPrefix(name, rootfsPrefix) {
		s.drop(name)
		return nil
	}
	s.mu.Lock()
	l, dir := s.layers[name], ""
	_, active := s.active[name]
	switch {
	case active:
		dir = s.fillDir(name)
		delete(s.active, name)
	case l == nil:
		s.mu.Unlock()
		return fmt.Errorf("snapshot %s: %w", name, errdefs.ErrNotFound)
	case s.isBelow(l):
		s.mu.Unlock()
		return fmt.Errorf("snapshot %s is below another one: %w", name, errdefs.ErrFailedPrecondition)
	default:
		dir = s.layerDir(l.id)
		delete(s.layers, name)
	}
	s.mu.Unlock()
	s.drop(name)
	if l != nil {
		s.unmountAll([]string{l.id})
	}
	return s.discard(dir)
}

// isBelow reports whether something needs a layer. s.mu is held.
func (s *Store) isBelow(l *layer) bool {
	if s.counts[l.id] > 0 {
		return true
	}
	for _, other := range s.layers {
		if other.Parent == l.Chain {
			return true
		}
	}
	for _, parent := range s.active {
		if parent == l.Chain {
			return true
		}
	}
	return false
}

// Usage implements snapshots.Snapshotter: it is the room of a layer on disk.
func (s *Store) Usage(_ context.Context, name string) (snapshots.Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layers[name]
	if l == nil {
		return snapshots.Usage{}, fmt.Errorf("snapshot %s: %w", name, errdefs.ErrNotFound)
	}
	return snapshots.Usage{Size: l.bytes, Inodes: filesOfLayer}, nil
}

// filesOfLayer are the directory of a layer, its image and its record.
const filesOfLayer = 3

// Sizes returns the room of each layer on disk, in bytes, by its chain.
func (s *Store) Sizes() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sizes := map[string]int64{}
	for chain, l := range s.layers {
		sizes[chain] = l.bytes
	}
	return sizes
}

// Total returns the room of all layers on disk.
func (s *Store) Total() (bytes, inodes int64) {
	for _, size := range s.Sizes() {
		bytes, inodes = bytes+size, inodes+filesOfLayer
	}
	return bytes, inodes
}

// ChainOf returns the chain of the layer whose mount has a path, "" if it is none.
func (s *Store) ChainOf(path string) string {
	if filepath.Dir(path) != s.State {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for chain, l := range s.layers {
		if l.id == filepath.Base(path) {
			return chain
		}
	}
	return ""
}

// below returns a layer and those below it, topmost first. s.mu is held.
func (s *Store) below(chain string) ([]*layer, error) {
	var all []*layer
	for at := chain; at != ""; {
		l := s.layers[at]
		if l == nil {
			return nil, fmt.Errorf("the layer %s is not there: %w", at, errdefs.ErrNotFound)
		}
		if slices.Contains(all, l) {
			return nil, fmt.Errorf("the layer %s is below itself: %w", at, errdefs.ErrInternal)
		}
		all, at = append(all, l), l.Parent
	}
	return all, nil
}
