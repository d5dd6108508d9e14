package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// An image may declare paths as volumes, and so may a request (run.berth.volumes). The
// container gets a directory there that holds a copy of what the image has at the path. It
// is on no overlay, and is writable also when the root filesystem is not. It belongs to the
// container's root filesystem, and is removed or kept with it.

// Maker makes the volumes that images declare.
type Maker struct {
	Rootfs  image.Rootfs
	Relabel *selinux.Relabeller
	Log     *slog.Logger
}

// Container is the part of a container that Maker needs.
type Container struct {
	ID, ImageID string
	Image       imagespec.ImageConfig
	Config      *runtimeapi.ContainerConfig
	// Rootfs is the mounted root filesystem. It shows owners as the pod's user namespace
	// maps them, so the copies belong to the pod, too.
	Rootfs string
	// Owner owns a volume at a path that the image does not have.
	Owner  sysfd.Owner
	Labels selinux.Labels
	// Stage is called with progress.
	Stage func(name, waitsFor string)
}

// Make makes the volumes of a container.
func (m Maker) Make(ctx context.Context, c *Container) ([]ocispec.ImageVolume, error) {
	if requested := c.Config.GetAnnotations()[request.AnnotationVolumes]; len(c.Image.Volumes) == 0 && requested == "" {
		return nil, nil
	}
	paths, leftOut, err := ocispec.ImageVolumes(c.Image, c.Config, func(path string) (string, error) {
		at, err := securejoin.SecureJoin(c.Rootfs, path)
		return strings.TrimPrefix(at, c.Rootfs), err
	})
	if err != nil {
		return nil, err
	}
	if len(leftOut) > 0 {
		m.Log.Warn("ignoring volumes of an image at paths where the runtime itself mounts",
			"container", c.ID, "image", c.ImageID, "volumes", leftOut)
	}
	volumes := make([]ocispec.ImageVolume, len(paths))
	for i, path := range paths {
		dir, err := m.volume(ctx, c, nameOf(i, c, path), path)
		if err == nil && c.Labels.Mount != "" && !c.Labels.Unconfined() {
			err = m.Relabel.Relabel(ctx, dir, c.Labels.Mount, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("image: the volume %q: %w", path, err)
		}
		volumes[i] = ocispec.ImageVolume{Destination: path, Source: dir}
	}
	return volumes, nil
}

// nameOf is the name of the i-th volume, at path. A volume that is kept needs a name by
// which a later request with other volumes finds it.
func nameOf(i int, c *Container, path string) string {
	if request.StorageOf(c.Config) == "" {
		return strconv.Itoa(i)
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:8])
}

// volume makes one volume, with what the image has at path.
func (m Maker) volume(ctx context.Context, c *Container, name, path string) (string, error) {
	from, err := sysfile.DirInRoot(c.Rootfs, path)
	if errors.Is(err, errs.NotFound) {
		from, err = "", nil
	}
	if err != nil {
		return "", err
	}
	const stage = "copy the image's volumes"
	c.Stage(stage, path)
	return m.Rootfs.MakeVolume(ctx, image.VolumeSpec{
		Key: c.ID, Name: name, From: from, UID: c.Owner.UID, GID: c.Owner.GID,
		Progress: Reporter(c.Stage, stage, path),
	})
}

// Reporter returns a function that reports how far a copy of something is, from time to time.
func Reporter(report func(stage, waitsFor string), stage, what string) func(sysfile.Copied) {
	reported := time.Now()
	return func(now sysfile.Copied) {
		if time.Since(reported) >= reportEvery {
			reported = time.Now()
			report(stage, fmt.Sprintf("%s, %d files and %d MiB so far", what, now.Files, now.Bytes>>20))
		}
	}
}

// reportEvery is how often progress is reported.
const reportEvery = time.Second
