package translate

import (
	"path"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// setMounts adds the mounts of the request, and file systems in memory. Mounts that are
// relabelled are bindings in the engine's text form, which alone has that.
func setMounts(in ContainerInput, host *container.HostConfig) error {
	for i, m := range in.Spec.Config.GetMounts() {
		switch {
		case m.GetImage() != nil:
			host.Mounts = append(host.Mounts, mount.Mount{
				Type: mount.TypeImage, Source: in.Spec.VolumeImages[i], Target: m.GetContainerPath(), ReadOnly: true,
				ImageOptions: &mount.ImageOptions{Subpath: m.GetImageSubPath()},
			})
		case m.GetSelinuxRelabel() && in.Facts.SELinux:
			host.Binds = append(host.Binds, binding(m))
		default:
			host.Mounts = append(host.Mounts, bind(m, in.Facts))
		}
	}
	paths, err := request.TmpfsOf(in.Spec.Config)
	if err != nil {
		return err
	}
	for _, at := range paths {
		if host.Tmpfs == nil {
			host.Tmpfs = map[string]string{}
		}
		host.Tmpfs[at] = "rw,nosuid,nodev"
	}
	return nil
}

func bind(m *runtimeapi.Mount, facts Facts) mount.Mount {
	options := &mount.BindOptions{Propagation: propagationOf(m)}
	if m.GetReadonly() && facts.RecursiveReadOnly() {
		// Engines since 25 make all mounts below read-only unless they are asked not to.
		options.ReadOnlyForceRecursive = m.GetRecursiveReadOnly()
		options.ReadOnlyNonRecursive = !m.GetRecursiveReadOnly()
	}
	return mount.Mount{
		Type: mount.TypeBind, Source: path.Clean(m.GetHostPath()), Target: m.GetContainerPath(), ReadOnly: m.GetReadonly(), BindOptions: options,
	}
}

// binding is "source:target:options".
func binding(m *runtimeapi.Mount) string {
	options := "Z"
	if m.GetReadonly() {
		options = "ro,Z"
	}
	if propagation := propagationOf(m); propagation != "" {
		options += "," + string(propagation)
	}
	return path.Clean(m.GetHostPath()) + ":" + m.GetContainerPath() + ":" + options
}

// propagationOf returns "" for a private mount: the engine's default. An engine refuses to mount what its
// own root is in, / for example, as rprivate, and takes rslave for it by default. It wants rprivate by
// name for a recursive read-only mount.
func propagationOf(m *runtimeapi.Mount) mount.Propagation {
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		return mount.PropagationRShared
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		return mount.PropagationRSlave
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
	}
	if m.GetRecursiveReadOnly() {
		return mount.PropagationRPrivate
	}
	return ""
}
