package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// A root filesystem for a user namespace is an overlay whose layers are seen with
// mapped ids; what the container writes has the host's numbers on disk, so nothing
// there belongs to the host's root. Of a copy (see copy.go) all is seen with mapped ids: on disk it has the numbers
// that the container sees, in directories that only the host's root may enter.
//
// The container's init has no rights on the host and walks to its root by path. So these mounts
// are separate, in State/mapped, which every user may pass through, each in a
// directory of its own that only its namespace's root group may:
//
//	<key>/rootfs   the mount
//	<key>/layers   while it is made: the layers of all images, with mapped ids
//	<key>/linked   the same for preloaded layers (package preload), and for layers that are mounts (package erofs)

const (
	mappedRootfs = "rootfs"
	mappedLayers = "layers"
	mappedLinked = "linked"
)

// mountMapped mounts the overlay for a user namespace. All layers are mapped by one
// mount, however many there are, but for those that are mounts themselves (package erofs).
func (m *Manager) mountMapped(spec image.RootfsSpec, u use, overlay sysmount.Overlay) error {
	if err := m.makeMapped(spec); err != nil {
		return err
	}
	dir := filepath.Join(m.MappedDir(), spec.Key)
	layers := filepath.Join(dir, mappedLayers)
	if err := os.Mkdir(layers, 0o700); err != nil {
		return err
	}
	source := m.linkedLayer
	if u.lowerRoot != "" {
		source = func(layer string) string { return filepath.Join(u.lowerRoot, layer) }
	} else if err := sysmount.BindMapped(m.layersDir, layers, spec.Map.UserNS); err != nil {
		return err
	}
	overlay.LowerRoot = layers
	err := m.mapEach(dir, spec.Map.UserNS, overlay.Lower, source, func(lower []string) error {
		overlay.Lower = lower
		return sysmount.MountOverlay(overlay, m.mappedPath(spec.Key))
	})
	// The overlay has its own reference to the layers.
	return errors.Join(err, sysmount.Detach(layers), os.Remove(layers))
}

// makeMapped makes the directory of a mount that a user namespace reaches, and its mount point.
func (m *Manager) makeMapped(spec image.RootfsSpec) error {
	if err := m.reachable(); err != nil {
		return err
	}
	// A process that was killed here may have left some of it.
	if err := m.unmountMapped(spec.Key); err != nil {
		return err
	}
	dir := filepath.Join(m.MappedDir(), spec.Key)
	for _, d := range []string{dir, m.mappedPath(spec.Key)} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	return errors.Join(os.Chown(dir, 0, spec.Map.GID), os.Chmod(dir, 0o710))
}

// linkedLayer returns where a layer is that is a link out of the layers' directory, "" for others.
func (m *Manager) linkedLayer(layer string) string {
	target, err := os.Readlink(filepath.Join(m.layersDir, layer))
	if err != nil {
		return "" // a directory
	}
	return target
}

// mapEach mounts, with mapped ids, the layers that have a source of their own, while mount runs, which gets all layers as they
// are called from there on.
func (m *Manager) mapEach(dir, userns string, lower []string, source func(layer string) string, mount func(lower []string) error) (err error) {
	lower = slices.Clone(lower)
	linked := filepath.Join(dir, mappedLinked)
	defer func() { err = errors.Join(err, unmountLinked(linked)) }()
	for i, layer := range lower {
		target := source(layer)
		if target == "" {
			continue
		}
		at := filepath.Join(linked, strconv.Itoa(i))
		if err := os.MkdirAll(at, 0o700); err != nil {
			return err
		}
		if err := sysmount.BindMapped(target, at, userns); err != nil {
			return fmt.Errorf("a layer is in %s: %w; remove the image and pull or import it, to have its layers in %s", filepath.Dir(target), err, m.layersDir)
		}
		lower[i] = filepath.Join("..", mappedLinked, strconv.Itoa(i))
	}
	return mount(lower)
}

// unmountLinked removes the mounts in a directory, and it. Nil when there is none.
func unmountLinked(linked string) error {
	entries, err := os.ReadDir(linked)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		at := filepath.Join(linked, entry.Name())
		if err := errors.Join(sysmount.Detach(at), os.Remove(at)); err != nil {
			return err
		}
	}
	return os.Remove(linked)
}

// unmountMapped undoes mountMapped. Nil when there is nothing.
func (m *Manager) unmountMapped(key string) error {
	dir := filepath.Join(m.MappedDir(), key)
	if err := unmountLinked(filepath.Join(dir, mappedLinked)); err != nil {
		return err
	}
	for _, name := range []string{mappedLayers, mappedRootfs} {
		path := filepath.Join(dir, name)
		if err := sysmount.Detach(path); err != nil {
			return err
		}
		if err := errs.IgnoreNotExist(os.Remove(path)); err != nil {
			return err
		}
	}
	if err := errs.IgnoreNotExist(os.Remove(dir)); err != nil {
		return err
	}
	return nil
}

// reachable returns an error of kind Unsupported for the first directory above the mounts that
// other users, such as a namespace's root, cannot pass through.
func (m *Manager) reachable() error {
	path := "/"
	for name := range strings.SplitSeq(strings.TrimPrefix(m.MappedDir(), "/"), "/") {
		path = filepath.Join(path, name)
		fi, err := os.Stat(path)
		if err != nil {
			return err
		}
		if fi.Mode()&0o001 == 0 {
			return fmt.Errorf("the root of a user namespace cannot pass through %s (mode %o): let others search it, or move berth's state directory: %w", path, fi.Mode().Perm(), errs.Unsupported)
		}
	}
	return nil
}

// CanMap implements image.Rootfs.
func (m *Manager) CanMap(userns string) error {
	if err := m.reachable(); err != nil {
		return err
	}
	if m.copies {
		return sysmount.ProbeMapped(m.ContainersDir(), userns)
	}
	return m.probeMapped(userns)
}

// probeMapped mounts an overlay as mountMapped does: kernels before 5.19 map the
// ids of a file system, but take no such layer.
func (m *Manager) probeMapped(userns string) (err error) {
	if err := sysmount.ProbeMapped(m.layersDir, userns); err != nil {
		return err
	}
	dir, err := m.pool.take(m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	lower, target := filepath.Join(dir, mappedLayers), filepath.Join(dir, mappedRootfs)
	for _, d := range []string{lower, target} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	if err := sysmount.BindMapped(filepath.Join(dir, upperName), lower, userns); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sysmount.Detach(lower)) }()
	overlay := sysmount.Overlay{LowerRoot: dir, Lower: []string{mappedLayers}, Upper: filepath.Join(dir, workName), Work: filepath.Join(dir, recordName)}
	if err := os.Mkdir(overlay.Work, 0o700); err != nil {
		return err
	}
	if err := sysmount.MountOverlay(overlay, target); err != nil {
		return fmt.Errorf("overlayfs takes no layers with mapped ids: %w: %w", err, errs.Unsupported)
	}
	return sysmount.Detach(target)
}
