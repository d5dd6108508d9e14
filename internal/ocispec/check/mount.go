package check

import (
	"path"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// maxMountOptions bounds the options of a mount.
const maxMountOptions = 64

func checkMounts(mounts []*runtimeapi.Mount, sandbox *runtimeapi.PodSandboxConfig) error {
	for i, m := range mounts {
		if err := checkMount(i, m, sandbox); err != nil {
			return err
		}
	}
	return nil
}

func checkMount(i int, m *runtimeapi.Mount, sandbox *runtimeapi.PodSandboxConfig) error {
	if _, ok := runtimeapi.MountPropagation_name[int32(m.GetPropagation())]; !ok {
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "propagation"), "unknown propagation %d", m.GetPropagation())
	}
	if err := checkMountOptions(i, m); err != nil {
		return err
	}
	if m.GetRecursiveReadOnly() {
		switch {
		case !m.GetReadonly():
			return fielderror.Invalid(fielderror.Index("config.mounts", i, "recursive_read_only"), "is set, but readonly is not")
		case m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
			return fielderror.Invalid(fielderror.Index("config.mounts", i, "recursive_read_only"), "cannot be combined with the propagation %s", m.GetPropagation())
		}
	}
	if m.GetImage() != nil {
		return checkImageMount(i, m, sandbox)
	}
	// Without an image its sub path means nothing: in a pod that has an image volume, a
	// kubelet sets it for the sub paths of all volumes, whose host_path has it already.
	return checkMountMappings(i, m)
}

// checkMountOptions knows the options that Kubernetes does; what else a mount is,
// other fields say.
func checkMountOptions(i int, m *runtimeapi.Mount) error {
	if n := len(m.GetMountOptions()); n > maxMountOptions {
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "mount_options"), "%d are more than %d", n, maxMountOptions)
	}
	for _, option := range m.GetMountOptions() {
		switch option {
		case "noexec", "nodev", "nosuid":
		default:
			return fielderror.Invalid(fielderror.Index("config.mounts", i, "mount_options"), "%q is none of noexec, nodev and nosuid", option)
		}
	}
	return nil
}

func checkMountMappings(i int, m *runtimeapi.Mount) error {
	if len(m.GetUidMappings()) == 0 && len(m.GetGidMappings()) == 0 {
		return nil
	}
	if err := checkIDMappings(fielderror.Index("config.mounts", i, "uidMappings"), m.GetUidMappings()); err != nil {
		return err
	}
	return checkIDMappings(fielderror.Index("config.mounts", i, "gidMappings"), m.GetGidMappings())
}

func checkImageMount(i int, m *runtimeapi.Mount, sandbox *runtimeapi.PodSandboxConfig) error {
	sub := m.GetImageSubPath()
	switch {
	case m.GetImage().GetImage() == "":
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "image.image"), "is missing")
	case m.GetImage().GetRuntimeHandler() != "":
		return fielderror.Unsupported(fielderror.Index("config.mounts", i, "image.runtime_handler"), "unknown runtime handler %q", m.GetImage().GetRuntimeHandler())
	case m.GetHostPath() != "":
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "host_path"), "must be empty when an image is mounted, not %q", m.GetHostPath())
	case !m.GetReadonly():
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "readonly"), "must be true when an image is mounted")
	case m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "propagation"), "%s cannot be an image's", m.GetPropagation())
	case path.IsAbs(sub) || hasDotDot(sub) || request.HasControl(sub):
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "image_sub_path"), "%q is not a relative path in the image", sub)
	}
	if err := checkMountMappings(i, m); err != nil {
		return err
	}
	// All containers of a pod share the volume.
	if n := request.UserNamespaceOf(sandbox); len(m.GetUidMappings()) > 0 &&
		(n == nil || !n.UIDs.Same(m.GetUidMappings()[0]) || !n.GIDs.Same(m.GetGidMappings()[0])) {
		return fielderror.Invalid(fielderror.Index("config.mounts", i, "uidMappings"), "an image is mapped as its pod is, and this mapping is another")
	}
	return nil
}
