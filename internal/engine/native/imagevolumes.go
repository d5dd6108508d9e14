package native

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// An image may declare paths as volumes. The container gets a directory of its own
// there, on a file system that is no overlay, which can be written to also when its
// root filesystem cannot, with a copy of what the image has at the path. It belongs
// to the container's root filesystem, and goes with it.

// imageVolumesOf makes the directories. The root filesystem at rootfs shows owners as
// the pod's user namespace maps them, so the copies belong to the pod, too.
func (e *Engine) imageVolumesOf(ctx context.Context, spec *engine.ContainerSpec, rootfs string, labels selinux.Labels) ([]ocispec.ImageVolume, error) {
	if len(spec.ImageConfig.Volumes) == 0 || e.rules().NoImageVolumes {
		return nil, nil
	}
	paths, leftOut, err := ocispec.ImageVolumes(spec.ImageConfig, spec.Config, func(path string) (string, error) {
		at, err := securejoin.SecureJoin(rootfs, path)
		return strings.TrimPrefix(at, rootfs), err
	})
	if err != nil {
		return nil, err
	}
	if len(leftOut) > 0 {
		e.log.Warn("an image declares volumes where the runtime itself mounts; they are left out", "container", spec.ID, "image", spec.ImageID, "volumes", leftOut)
	}
	volumes := make([]ocispec.ImageVolume, len(paths))
	for i, path := range paths {
		dir, err := e.imageVolume(ctx, spec, rootfs, i, path)
		if err == nil && labels.Mount != "" && !labels.Unconfined() {
			err = e.relabel.Relabel(ctx, dir, labels.Mount, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("image: it declares the volume %q: %w", path, err)
		}
		volumes[i] = ocispec.ImageVolume{Destination: path, Source: dir}
	}
	if len(paths) > 0 {
		stageOf(spec)(stageCreate, stageEngine)
	}
	return volumes, nil
}

// imageVolume makes the i-th one, with what the image has at path.
func (e *Engine) imageVolume(ctx context.Context, spec *engine.ContainerSpec, rootfs string, i int, path string) (string, error) {
	from, err := sysfile.DirInRoot(rootfs, path)
	if errors.Is(err, errs.NotFound) {
		from, err = "", nil
	}
	if err != nil {
		return "", err
	}
	const name = "copy the image's volumes"
	stage, told := stageOf(spec), time.Now()
	stage(name, path)
	owner := ownerOf(spec.SandboxSpec.Config)
	return e.cfg.Rootfs.MakeVolume(ctx, image.VolumeSpec{
		Key: spec.ID, Name: strconv.Itoa(i), From: from, UID: owner.UID, GID: owner.GID,
		Tell: func(now sysfile.Copied) {
			if time.Since(told) >= tellEvery {
				told = time.Now()
				stage(name, fmt.Sprintf("%s, %d files and %d MiB so far", path, now.Files, now.Bytes>>20))
			}
		},
	})
}

// tellEvery is how often progress is told.
const tellEvery = time.Second
