package ocispec

import (
	"path"
	"slices"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// ImageVolume is a directory of a container's own, at a path that its image declares
// as a volume, or its request by request.AnnotationVolumes.
type ImageVolume struct {
	// Destination is where it is in the container, Source where on the host.
	Destination, Source string
}

// maxImageVolumes bounds what an image may declare: each is a copy and a mount.
const maxImageVolumes = 256

// ImageVolumes returns the paths at which a container gets volumes because its image or its
// request declares them: absolute, clean, without links, sorted. resolve follows the links of
// an absolute path in the image, and stays in it.
//
// A mount of the request at such a path or above it replaces the volume: what a pod writes
// into its own volume must not land in one that is removed with the container. A path where
// the runtime mounts is no volume either; leftOut are these, as the image has them. Errors
// have kind Invalid.
func ImageVolumes(image imagespec.ImageConfig, config *runtimeapi.ContainerConfig, resolve func(path string) (string, error)) (paths, leftOut []string, err error) {
	if len(image.Volumes) > maxImageVolumes {
		return nil, nil, fielderror.Invalid("image", "it declares %d volumes, at most %d are made", len(image.Volumes), maxImageVolumes)
	}
	var taken []string
	for _, m := range config.GetMounts() {
		taken = append(taken, m.GetContainerPath())
	}
	for _, d := range config.GetDevices() {
		taken = append(taken, d.GetContainerPath())
	}
	inMemory, err := request.TmpfsOf(config)
	if err != nil {
		return nil, nil, err
	}
	asked, err := request.AskedVolumes(config)
	if err != nil {
		return nil, nil, err
	}
	taken = append(taken, inMemory...)
	for i, at := range taken {
		// One that cannot be resolved is refused where it is mounted.
		if to, err := resolved(at, resolve); err == nil {
			taken[i] = to
		}
	}
	for declared := range image.Volumes {
		if request.HasControl(declared) {
			return nil, nil, fielderror.Invalid("image", "it declares the volume %q, which is not a path", declared)
		}
		at, err := resolved(declared, resolve)
		switch {
		case err != nil:
			return nil, nil, fielderror.Invalid("image", "it declares the volume %q: %v", declared, err)
		case request.MountedByRuntime(at):
			leftOut = append(leftOut, declared)
		case !slices.ContainsFunc(taken, func(above string) bool { return request.IsBelow(at, above) }):
			paths = append(paths, at)
		}
	}
	for _, declared := range asked {
		at, err := resolved(declared, resolve)
		switch {
		case err != nil:
			return nil, nil, fielderror.Invalid(request.AnnotationField(request.AnnotationVolumes), "%q: %v", declared, err)
		case request.MountedByRuntime(at):
			return nil, nil, fielderror.Invalid(request.AnnotationField(request.AnnotationVolumes), "%q is where the runtime itself mounts", declared)
		}
		paths = append(paths, at)
	}
	slices.Sort(paths)
	slices.Sort(leftOut)
	return slices.Compact(paths), leftOut, nil
}

// resolved makes a path absolute, clean and free of links.
func resolved(from string, resolve func(string) (string, error)) (string, error) {
	to, err := resolve(path.Clean("/" + from))
	return path.Clean("/" + to), err
}

// imageVolumeMounts come before all that the request mounts, which lies below or
// beside them. They can be written to whatever the root filesystem is, and are a part of it
// otherwise: flags of the host's file system that they lie on, which an overlay does not take
// over, are not theirs either.
func (in Input) imageVolumeMounts() []specs.Mount {
	mounts := make([]specs.Mount, 0, len(in.ImageVolumes))
	for _, v := range in.ImageVolumes {
		mounts = append(mounts, bind(v.Source, v.Destination, "rprivate", "rw"))
	}
	return mounts
}
