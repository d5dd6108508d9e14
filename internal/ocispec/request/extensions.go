package request

import (
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

// Annotations of a container's own request for what CRI has no field for. A kubelet passes no
// annotation of a pod on to containers.
const (
	// AnnotationTmpfs are paths, comma separated, at which a file system in memory is
	// mounted, with owner and mode of the image's directory.
	AnnotationTmpfs = "run.berth.tmpfs"
	// AnnotationVolumes are paths, comma separated, that are volumes of the container as if
	// its image declared them: directories of the disk with a copy of what the image has.
	AnnotationVolumes = "run.berth.volumes"
	// AnnotationStorage is a directory of the host. What the container writes is kept there,
	// its volumes included: it stays when the container is removed, and the next one of the
	// same image goes on with it.
	AnnotationStorage = "run.berth.storage"
)

// MaxAskedPaths bounds how many paths an annotation may have: each is a mount.
const MaxAskedPaths = 64

// AnnotationField is the name of an annotation in errors.
func AnnotationField(name string) string { return "config.annotations[\"" + name + "\"]" }

// TmpfsOf are the paths of AnnotationTmpfs.
func TmpfsOf(config *runtimeapi.ContainerConfig) ([]string, error) {
	return askedPaths(config, AnnotationTmpfs)
}

// AskedVolumes are the paths of AnnotationVolumes.
func AskedVolumes(config *runtimeapi.ContainerConfig) ([]string, error) {
	return askedPaths(config, AnnotationVolumes)
}

// askedPaths are paths in the container at which nothing else is mounted.
func askedPaths(config *runtimeapi.ContainerConfig, name string) ([]string, error) {
	text, asked := config.GetAnnotations()[name]
	if !asked {
		return nil, nil
	}
	field := AnnotationField(name)
	paths := strings.Split(text, ",")
	if len(paths) > MaxAskedPaths {
		return nil, fielderror.Invalid(field, "%d paths are more than %d", len(paths), MaxAskedPaths)
	}
	for i, at := range paths {
		switch {
		case !path.IsAbs(at) || HasControl(at) || path.Clean(at) != at || len(at) > MaxPath:
			return nil, fielderror.Invalid(field, "%q is not an absolute path without dots, double slashes and a slash at its end", at)
		case MountedByRuntime(at):
			return nil, fielderror.Invalid(field, "%q is where the runtime itself mounts", at)
		case slices.Contains(paths[:i], at):
			return nil, fielderror.Invalid(field, "%q is there twice", at)
		}
		for j, m := range config.GetMounts() {
			if path.Clean(m.GetContainerPath()) == at {
				return nil, fielderror.Invalid(field, "%q is where %s is mounted", at, fielderror.Index("config.mounts", j, ""))
			}
		}
	}
	return paths, nil
}

// StorageOf is the directory of AnnotationStorage, "" for none.
func StorageOf(config *runtimeapi.ContainerConfig) string {
	return config.GetAnnotations()[AnnotationStorage]
}
