// Package volume mounts the images that containers name, and makes the volumes that images
// declare.
package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// A mounted image is mounted once for all containers of a sandbox, read-only, under a key
// that begins with the sandbox's id. It keeps the layers of the image until the sandbox is
// stopped. Its key finds it when nothing else of the sandbox is left.

// maxKeyPart is how much of an image's hex digest is in a key, whose length is limited.
const maxKeyPart = 32

func keyOf(sandboxID, imageID string) string {
	_, hex, _ := strings.Cut(imageID, ":")
	return sandboxID + "-" + hex[:min(len(hex), maxKeyPart)]
}

// SandboxOfKey returns the sandbox of a mounted image's key. ok is false for the key of a
// container.
func SandboxOfKey(key string) (sandboxID string, ok bool) {
	sandboxID, _, ok = strings.Cut(key, "-")
	return sandboxID, ok
}

// Sandbox is the part of a sandbox that Images needs.
type Sandbox struct {
	ID string
	// Dir has an entry for each image that is mounted for the sandbox.
	Dir string
	// Map maps the ids of the images, nil where they stay as they are.
	Map *image.UserMap
	// MountLabel is the SELinux label of the sandbox's files, "" for none.
	MountLabel string
	// Snapshotter is that of the sandbox's handler, "" for none; see image.RootfsSpec.
	Snapshotter string
}

// Images mounts images for sandboxes.
type Images struct{ Rootfs image.Rootfs }

// Mount mounts the images that a container's mounts name, and returns the directories to
// mount from, by the mount's index. images are the ids of the images, by the same index.
// Errors name the field of the request.
func (m Images) Mount(ctx context.Context, sb Sandbox, mounts []*runtimeapi.Mount, images map[int]string) (map[int]string, error) {
	dirs := map[int]string{}
	for i, mount := range mounts {
		if mount.GetImage() == nil {
			continue
		}
		dir, err := m.mount(ctx, sb, images[i])
		if err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image: cannot mount %q: %w", i, mount.GetImage().GetImage(), err)
		}
		if dir, err = sysfile.DirInRoot(dir, mount.GetImageSubPath()); err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image_sub_path: cannot mount %q: %w", i, mount.GetImage().GetImage(), err)
		}
		dirs[i] = dir
	}
	return dirs, nil
}

func (m Images) mount(ctx context.Context, sb Sandbox, imageID string) (string, error) {
	key := keyOf(sb.ID, imageID)
	// Before it is mounted, so that Release finds it.
	if err := os.MkdirAll(filepath.Join(sb.Dir, key), 0o700); err != nil {
		return "", fmt.Errorf("cannot record the mounted image: %w", err)
	}
	mounted, err := m.Rootfs.Prepare(ctx, image.RootfsSpec{
		Key: key, ImageID: imageID, Map: sb.Map, ReadOnly: true,
		// For every container of the sandbox, also those that have another label.
		MountLabel:  selinux.Shared(sb.MountLabel),
		Snapshotter: sb.Snapshotter,
	})
	if err != nil {
		return "", err
	}
	return mounted.Path, nil
}

// Release releases the images that are mounted for a sandbox. dir is Sandbox.Dir, "" where
// it was lost in a reboot: then the store is asked which there are.
func (m Images) Release(ctx context.Context, id, dir string) error {
	keys, err := m.keys(ctx, dir)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if owner, ok := SandboxOfKey(key); ok && owner == id {
			err = errors.Join(err, errs.IgnoreNotFound(m.Rootfs.Release(ctx, key)))
		}
	}
	return err
}

func (m Images) keys(ctx context.Context, dir string) ([]string, error) {
	if dir == "" {
		return m.Rootfs.Keys(ctx)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot list the mounted images: %w", err)
	}
	keys := make([]string, len(entries))
	for i, entry := range entries {
		keys[i] = entry.Name()
	}
	return keys, nil
}
