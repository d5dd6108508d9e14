package ocispec

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Annotations of a container's own request by which it gets what CRI has no field for. A
// kubelet passes no annotation of a pod on to them.
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

// maxAsked bounds how many paths an annotation may have: each is a mount.
const maxAsked = 64

func annotationField(name string) string { return "config.annotations[\"" + name + "\"]" }

// TmpfsOf are the paths of AnnotationTmpfs.
func TmpfsOf(config *runtimeapi.ContainerConfig) ([]string, error) {
	return askedPaths(config, AnnotationTmpfs)
}

// AskedVolumes are the paths of AnnotationVolumes.
func AskedVolumes(config *runtimeapi.ContainerConfig) ([]string, error) {
	return askedPaths(config, AnnotationVolumes)
}

// askedPaths are places in the container that belong to nobody else.
func askedPaths(config *runtimeapi.ContainerConfig, name string) ([]string, error) {
	text, asked := config.GetAnnotations()[name]
	if !asked {
		return nil, nil
	}
	field := annotationField(name)
	paths := strings.Split(text, ",")
	if len(paths) > maxAsked {
		return nil, invalid(field, "%d paths are more than %d", len(paths), maxAsked)
	}
	for i, at := range paths {
		switch {
		case !path.IsAbs(at) || hasControl(at) || path.Clean(at) != at || len(at) > maxPath:
			return nil, invalid(field, "%q is not an absolute path without dots, double slashes and a slash at its end", at)
		case isRuntimes(at):
			return nil, invalid(field, "%q is where the runtime itself mounts", at)
		case slices.Contains(paths[:i], at):
			return nil, invalid(field, "%q is there twice", at)
		}
		for j, m := range config.GetMounts() {
			if path.Clean(m.GetContainerPath()) == at {
				return nil, invalid(field, "%q is where %s is mounted", at, index("config.mounts", j, ""))
			}
		}
	}
	return paths, nil
}

// StorageOf is the directory of AnnotationStorage, "" for none.
func StorageOf(config *runtimeapi.ContainerConfig) string {
	return config.GetAnnotations()[AnnotationStorage]
}

func checkExtensions(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	tmpfs, err := TmpfsOf(config)
	if err != nil {
		return err
	}
	volumes, err := AskedVolumes(config)
	if err != nil {
		return err
	}
	for _, at := range volumes {
		if slices.Contains(tmpfs, at) {
			return invalid(annotationField(AnnotationVolumes), "%q is in %s, too", at, AnnotationTmpfs)
		}
		for j, m := range config.GetMounts() {
			if isBelow(at, path.Clean(m.GetContainerPath())) {
				return invalid(annotationField(AnnotationVolumes), "%q would be hidden by %s", at, index("config.mounts", j, ""))
			}
		}
	}
	return checkStorage(config, sandbox)
}

// checkStorage: in overlay mounts some letters have a meaning.
func checkStorage(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	dir, asked := config.GetAnnotations()[AnnotationStorage]
	field := annotationField(AnnotationStorage)
	switch {
	case !asked:
		return nil
	case !path.IsAbs(dir) || hasControl(dir) || path.Clean(dir) != dir || dir == "/" || strings.ContainsAny(dir, ",:\\"):
		return invalid(field, "%q is not an absolute path without comma, colon, backslash, dots and a slash at its end", dir)
	case UserNamespaceOf(sandbox) != nil:
		return unsupported(field, "the pod has a user namespace, for which what is kept cannot be mapped")
	}
	return nil
}

// tmpfsMounts are those of AnnotationTmpfs, which CheckContainer has passed. Without a mode
// they have that of the directory below.
func (in Input) tmpfsMounts() ([]specs.Mount, error) {
	paths, err := TmpfsOf(in.Config)
	mounts := make([]specs.Mount, 0, len(paths))
	for _, at := range paths {
		mounts = append(mounts, specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev"}})
	}
	return mounts, err
}
