package erofs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// mountFlags hold for the mounts of layers, which nobody but the kernel's overlays reads. The overlays have flags of their own.
const mountFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// Use mounts a layer and those below it for the root filesystem of a key, until Drop, and returns their directories below
// State, topmost first. It mounts again what is not mounted any more. An errdefs.NotFound error says that a layer is lost, or
// that its file was changed: the store has dropped it.
func (s *Store) Use(ctx context.Context, key, chain string) ([]string, error) {
	return s.use(ctx, rootfsPrefix+key, chain)
}

// Restore is Use for the record of an earlier process. It mounts nothing, and returns an error if a layer is lost.
func (s *Store) Restore(key, chain string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _, err := s.reserve(rootfsPrefix+key, chain)
	return err
}

// Drop ends the use of a key. Layers that nothing else uses stay mounted until they are removed: the next container finds in the
// cache what the last one has read.
func (s *Store) Drop(key string) { s.drop(rootfsPrefix + key) }

// reserve records the use of layers. fresh is false if it was recorded before. s.mu is held.
func (s *Store) reserve(key, chain string) (all []*layer, fresh bool, err error) {
	if known, ok := s.uses[key]; ok {
		return known, false, nil
	}
	if all, err = s.below(chain); err != nil {
		return nil, false, err
	}
	s.uses[key] = all
	for _, l := range all {
		s.counts[l.id]++
	}
	return all, true, nil
}

func (s *Store) use(ctx context.Context, key, chain string) (ids []string, err error) {
	s.mu.Lock()
	all, fresh, err := s.reserve(key, chain)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer func() {
		// A root filesystem that a record names may be mounted later. What it had of layers that are lost, it has no more.
		if err != nil && (fresh || errdefs.IsNotFound(err)) {
			s.drop(key)
		}
	}()
	if err := os.MkdirAll(s.State, 0o700); err != nil {
		return nil, err
	}
	for _, l := range all {
		if err := s.mount(ctx, l); err != nil {
			return nil, err
		}
		ids = append(ids, l.id)
	}
	return ids, nil
}

// mount mounts a layer unless it is mounted. If its file was changed, it drops the layer.
func (s *Store) mount(ctx context.Context, l *layer) error {
	unlock, err := s.mounts.Lock(ctx, l.id)
	if err != nil {
		return err
	}
	defer unlock()
	target := s.mountOf(l.id)
	if mounted, err := sysmount.IsMountPoint(target); err != nil || mounted {
		return err
	}
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	path := ImageFile(s.layerDir(l.id))
	err = verify(ctx, path, l.record, false)
	if err == nil {
		err = mountImage(path, target)
		// The kernel reads the superblock alone, so an error may say that the content is not what it was.
		if err != nil && !errors.Is(err, unix.ENODEV) {
			err = errors.Join(verify(ctx, path, l.record, true), err)
		}
	}
	if err == nil {
		return nil
	}
	err = errors.Join(err, errs.IgnoreNotExist(os.Remove(target)))
	var changed *changedError
	if !errors.As(err, &changed) {
		return fmt.Errorf("cannot mount the layer %s: %w", l.Chain, err)
	}
	s.log.Error("the file of a layer of the erofs snapshotter was changed; the layer is dropped, and the images with it are pulled again", "layer", l.Chain, "file", path, "error", changed)
	s.mu.Lock()
	var dropped []string
	if s.layers[l.Chain] == l {
		dropped = s.dropAbove(l.Chain)
	}
	s.mu.Unlock()
	s.unmountAll(slices.DeleteFunc(dropped, func(id string) bool { return id == l.id })) // that is locked, and not mounted
	return fmt.Errorf("the layer %s cannot be used: %w: %w", l.Chain, changed, errdefs.ErrNotFound)
}

// drop ends the use of a key. Of the layers that nothing else uses, it unmounts the removed ones. If the key is that of a layer
// which was unpacked, it unmounts all of them.
func (s *Store) drop(key string) {
	s.mu.Lock()
	all := s.uses[key]
	delete(s.uses, key)
	for _, l := range all {
		if s.counts[l.id]--; s.counts[l.id] == 0 {
			delete(s.counts, l.id)
		}
	}
	var unmount []string
	for _, l := range all {
		if s.layers[l.Chain] != l || !strings.HasPrefix(key, rootfsPrefix) {
			unmount = append(unmount, l.id)
		}
	}
	s.mu.Unlock()
	s.unmountAll(unmount)
}

// unmountAll unmounts those layers that nothing uses.
func (s *Store) unmountAll(ids []string) {
	for _, id := range ids {
		if err := s.unmountUnused(id); err != nil {
			s.log.Warn("cannot unmount a layer of the erofs snapshotter; the next start does", "mount", s.mountOf(id), "error", err)
		}
	}
}

// Close unmounts the layers that no root filesystem uses.
func (s *Store) Close() error { return s.Sweep() }

// unmountUnused unmounts a layer unless something uses it.
func (s *Store) unmountUnused(id string) error {
	unlock, err := s.mounts.Lock(context.Background(), id)
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	used := s.counts[id] > 0
	s.mu.Unlock()
	if used {
		return nil
	}
	target := s.mountOf(id)
	if err := sysmount.Detach(target); err != nil {
		return err
	}
	return errs.IgnoreNotExist(os.Remove(target))
}

// Check reads the file of a layer, and says how it is not what berth has written; "" if it is.
func (s *Store) Check(ctx context.Context, chain string) (problem string, err error) {
	s.mu.Lock()
	l := s.layers[chain]
	s.mu.Unlock()
	if l == nil {
		return "", nil // it was removed meanwhile
	}
	return s.problemOf(ctx, l)
}

// problemOf is Check of a layer that may be removed meanwhile.
func (s *Store) problemOf(ctx context.Context, l *layer) (problem string, err error) {
	err = compare(ctx, ImageFile(s.layerDir(l.id)), l.record)
	s.mu.Lock()
	removed := s.layers[l.Chain] != l
	s.mu.Unlock()
	var changed *changedError
	switch {
	case removed:
		return "", nil
	case errors.As(err, &changed):
		return changed.Error(), nil
	}
	return "", err
}

// Forget drops a layer and all above it. What is mounted of them stays until nothing uses it.
func (s *Store) Forget(chain string) {
	s.mu.Lock()
	dropped := s.dropAbove(chain)
	s.mu.Unlock()
	s.unmountAll(dropped)
}

// Sweep unmounts what no root filesystem uses, also what processes that were killed have left. Call it after Restore for all root
// filesystems.
func (s *Store) Sweep() error {
	entries, err := readDir(s.State)
	for _, id := range entries {
		err = errors.Join(err, s.unmountUnused(id))
	}
	return err
}

// directIO has the kernel cache what it reads of an image once: else it is in the cache of the file, too. Kernels that mount files
// and do not know the option fail with EINVAL.
const directIO = "directio"

// mountImage mounts an image, from its file where the kernel can (Linux 6.12), else by a loop device.
func mountImage(path, target string) error {
	err := unix.Mount(path, target, "erofs", mountFlags, directIO)
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount(path, target, "erofs", mountFlags, "")
	}
	if errors.Is(err, unix.ENOTBLK) {
		return mountLoop(path, target)
	}
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("the kernel has no EROFS; load the module erofs, or install a kernel that has it: %w", err)
	}
	if err != nil {
		return &os.PathError{Op: "mount " + path + " on", Path: target, Err: err}
	}
	return nil
}

// loopAttempts bounds how often a free loop device is taken by somebody else.
const loopAttempts = 100

// mountLoop mounts an image by a loop device, which goes with the mount.
func mountLoop(path, target string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("the kernel cannot mount an EROFS image from its file (Linux 6.12 can), and the host has no loop devices; load the module loop: %w", err)
	}
	defer control.Close()
	for range loopAttempts {
		err = mountLoopOnce(file, control, target)
		if !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return err
}

func mountLoopOnce(file, control *os.File, target string) error {
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return os.NewSyscallError("LOOP_CTL_GET_FREE", err)
	}
	device := fmt.Sprintf("/dev/loop%d", number)
	loop, err := os.OpenFile(device, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Clean(file.Name()))
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &config); err != nil {
		return &os.PathError{Op: "LOOP_CONFIGURE", Path: device, Err: err}
	}
	if err := unix.Mount(device, target, "erofs", mountFlags, ""); err != nil {
		return &os.PathError{Op: "mount " + device + " on", Path: target, Err: err}
	}
	return nil
}

// Probe reports whether the kernel has EROFS: nil, or why not, of kind Unsupported. It loads the module.
func Probe() error {
	fd, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("the kernel has no EROFS (%w); load the module erofs, or install a kernel with CONFIG_EROFS_FS: %w", err, errs.Unsupported)
	}
	return fmt.Errorf("cannot find out whether the kernel has EROFS: %w", err)
}
