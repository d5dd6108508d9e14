package check

import (
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// checkCgroupns judges the annotation of a pod's or a container's request. A pod's holds for
// those of its containers that are privileged, so that only the pod must be.
func checkCgroupns(annotations map[string]string, privileged, userNamespace bool) error {
	const field = `config.annotations["` + request.AnnotationCgroupns + `"]`
	switch asked, ok := annotations[request.AnnotationCgroupns]; {
	case !ok || asked == request.CgroupnsPrivate:
		return nil
	case asked != request.CgroupnsHost:
		return fielderror.Invalid(field, "%q: want %s or %s", asked, request.CgroupnsHost, request.CgroupnsPrivate)
	case !privileged:
		return fielderror.Invalid(field, "%s is for privileged pods and containers only", request.CgroupnsHost)
	case userNamespace:
		return fielderror.Invalid(field, "%s cannot be combined with a user namespace", request.CgroupnsHost)
	}
	return nil
}

func checkExtensions(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	tmpfs, err := request.TmpfsOf(config)
	if err != nil {
		return err
	}
	volumes, err := request.AskedVolumes(config)
	if err != nil {
		return err
	}
	for _, at := range volumes {
		if slices.Contains(tmpfs, at) {
			return fielderror.Invalid(request.AnnotationField(request.AnnotationVolumes), "%q is in %s, too", at, request.AnnotationTmpfs)
		}
		for j, m := range config.GetMounts() {
			if request.IsBelow(at, path.Clean(m.GetContainerPath())) {
				return fielderror.Invalid(request.AnnotationField(request.AnnotationVolumes), "%q would be hidden by %s", at, fielderror.Index("config.mounts", j, ""))
			}
		}
	}
	return checkStorage(config, sandbox)
}

// checkStorage: in overlay mounts some letters have a meaning.
func checkStorage(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	dir, asked := config.GetAnnotations()[request.AnnotationStorage]
	field := request.AnnotationField(request.AnnotationStorage)
	switch {
	case !asked:
		return nil
	case !path.IsAbs(dir) || request.HasControl(dir) || path.Clean(dir) != dir || dir == "/" || strings.ContainsAny(dir, ",:\\"):
		return fielderror.Invalid(field, "%q is not an absolute path without comma, colon, backslash, dots and a slash at its end", dir)
	case request.UserNamespaceOf(sandbox) != nil:
		return fielderror.Unsupported(field, "the pod has a user namespace, for which what is kept cannot be mapped")
	}
	return nil
}
