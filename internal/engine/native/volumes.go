package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// An image that containers mount is mounted once for all of a sandbox, read-only,
// under a key that begins with the sandbox's id. It keeps the image's layers until
// the sandbox is stopped, and is found by its key when nothing else of the sandbox
// is left.

// volumeKey keeps to the length that keys may have.
func volumeKey(sandboxID, imageID string) string {
	_, hex, _ := strings.Cut(imageID, ":")
	return sandboxID + "-" + hex[:min(len(hex), 32)]
}

// volumeOwner returns the sandbox that a volume's key tells; ok is false for the
// key of a container.
func volumeOwner(key string) (sandboxID string, ok bool) {
	sandboxID, _, ok = strings.Cut(key, "-")
	return sandboxID, ok
}

// prepareVolumes mounts the images that the request names. The sandbox keeps them.
func (e *Engine) prepareVolumes(ctx context.Context, c *creation) (err error) {
	if c.in.Volumes, err = e.volumesOf(ctx, c.containerSpec); err != nil {
		return &engine.VolumeError{Err: err}
	}
	return nil
}

// volumesOf mounts the images that the request names, and returns the directories
// to mount from, by the mount's index.
func (e *Engine) volumesOf(ctx context.Context, spec *containerSpec) (map[int]string, error) {
	volumes := map[int]string{}
	for i, m := range spec.Config.GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		dir, err := e.mountVolume(ctx, spec, spec.VolumeImages[i])
		if err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image: cannot mount %q: %w", i, m.GetImage().GetImage(), err)
		}
		if dir, err = sysfile.DirInRoot(dir, m.GetImageSubPath()); err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image_sub_path: cannot mount %q: %w", i, m.GetImage().GetImage(), err)
		}
		volumes[i] = dir
	}
	return volumes, nil
}

func (e *Engine) mountVolume(ctx context.Context, spec *containerSpec, imageID string) (string, error) {
	key := volumeKey(spec.SandboxSpec.ID, imageID)
	// Before it is mounted, so that removal finds it.
	if err := os.MkdirAll(filepath.Join(e.sandboxPaths(spec.SandboxSpec.ID).volumes, key), 0o700); err != nil {
		return "", fmt.Errorf("cannot write down the volume: %w", err)
	}
	mounted, err := e.cfg.Rootfs.Prepare(ctx, image.RootfsSpec{
		Key: key, ImageID: imageID, Map: userMap(spec.SandboxSpec, spec.Sandbox), ReadOnly: true,
		// For every container of the sandbox, also those that have a label of their own.
		MountLabel: selinux.Shared(spec.Sandbox.MountLabel),
	})
	if err != nil {
		return "", err
	}
	return mounted.Path, nil
}

// removeVolumes releases the images that were mounted for the sandbox.
func (e *Engine) removeVolumes(ctx context.Context, id string, paths sandboxPaths) error {
	keys, err := names(paths.volumes)
	if _, statErr := os.Lstat(paths.dir); errors.Is(statErr, os.ErrNotExist) {
		// Of before a reboot: only the disk tells.
		keys, err = e.cfg.Rootfs.Keys(ctx)
	}
	if err != nil {
		return err
	}
	keys = slices.DeleteFunc(keys, func(key string) bool {
		owner, ok := volumeOwner(key)
		return !ok || owner != id
	})
	for _, key := range keys {
		err = errors.Join(err, errs.IgnoreNotFound(e.cfg.Rootfs.Release(ctx, key)))
	}
	return err
}
