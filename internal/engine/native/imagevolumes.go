package native

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// An image may declare paths as volumes, and so may a request (run.berth.volumes). The
// container gets a directory of its own there, on a file system that is no overlay, which can be written to also when its
// root filesystem cannot, with a copy of what the image has at the path. It belongs
// to the container's root filesystem, and goes, or is kept, with it.

// imageVolumesOf makes the directories. The root filesystem at rootfs shows owners as
// the pod's user namespace maps them, so the copies belong to the pod, too.
func (e *Engine) imageVolumesOf(ctx context.Context, spec *containerSpec, rootfs string, labels selinux.Labels) ([]ocispec.ImageVolume, error) {
	declared := spec.ImageConfig
	if e.rules().NoImageVolumes {
		declared.Volumes = nil
	}
	if asked := spec.Config.GetAnnotations()[ocispec.AnnotationVolumes]; len(declared.Volumes) == 0 && asked == "" {
		return nil, nil
	}
	paths, leftOut, err := ocispec.ImageVolumes(declared, spec.Config, func(path string) (string, error) {
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
		dir, err := e.imageVolume(ctx, spec, rootfs, volumeName(i, spec, path), path)
		if err == nil && labels.Mount != "" && !labels.Unconfined() {
			err = e.relabel.Relabel(ctx, dir, labels.Mount, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("image: the volume %q: %w", path, err)
		}
		volumes[i] = ocispec.ImageVolume{Destination: path, Source: dir}
	}
	if len(paths) > 0 {
		stageOf(spec)(stageCreate, stageEngine)
	}
	return volumes, nil
}

// volumeName is what the i-th volume, at path, is called. What is kept must be found again
// when a later request has others.
func volumeName(i int, spec *containerSpec, path string) string {
	if ocispec.StorageOf(spec.Config) == "" {
		return strconv.Itoa(i)
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:8])
}

// imageVolume makes the one of a name, with what the image has at path.
func (e *Engine) imageVolume(ctx context.Context, spec *containerSpec, rootfs, named, path string) (string, error) {
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
		Key: spec.ID, Name: named, From: from, UID: owner.UID, GID: owner.GID,
		Progress: func(now sysfile.Copied) {
			if time.Since(told) >= tellEvery {
				told = time.Now()
				stage(name, fmt.Sprintf("%s, %d files and %d MiB so far", path, now.Files, now.Bytes>>20))
			}
		},
	})
}

// tellEvery is how often progress is told.
const tellEvery = time.Second
