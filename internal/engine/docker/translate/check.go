package translate

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// CheckSandbox refuses a sandbox that is wrong, and one that the engine cannot honour: see
// Refusals.
func CheckSandbox(config *runtimeapi.PodSandboxConfig, facts Facts) error {
	const field = "config.linux.security_context."
	security := request.SandboxSecurity(config)
	return errors.Join(
		check.Sandbox(config),
		checkUserNamespace(field, security.GetNamespaceOptions(), facts),
		checkSELinux(field, security.GetSelinuxOptions(), facts),
	)
}

// CheckContainer does the same for a container.
func CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig, facts Facts) error {
	const field = "config.linux.security_context."
	security := request.Security(config)
	return errors.Join(
		check.Container(config, sandbox),
		checkUserNamespace(field, security.GetNamespaceOptions(), facts),
		checkSELinux(field, security.GetSelinuxOptions(), facts),
		checkCapabilities(config, facts),
		checkMounts(config, facts),
		checkNull(config),
		checkDevices(config, facts),
		checkAnnotations(config, facts),
		CheckResources(request.FieldCreate, config.GetLinux().GetResources(), facts),
	)
}

// CheckResources refuses limits that are wrong, and those that the engine cannot set.
func CheckResources(field string, res *runtimeapi.LinuxContainerResources, facts Facts) error {
	if err := check.Resources(field, res); err != nil {
		return err
	}
	for i, limit := range res.GetHugepageLimits() {
		if limit.GetLimit() != 0 { // a kubelet sends 0 for "none requested"
			return facts.refuse(HugePages, fielderror.Index(field+".hugepage_limits", i, "limit"))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(res.GetUnified())) {
		if key != "memory.oom.group" { // sent for every pod
			return facts.refuse(Unified, fmt.Sprintf("%s.unified[%q]", field, key))
		}
	}
	if swap := res.GetMemorySwapLimitInBytes(); swap > 0 && !facts.SwapLimit && swap != res.GetMemoryLimitInBytes() {
		return facts.refuse(SwapLimit, field+".memory_swap_limit_in_bytes")
	}
	return nil
}

func checkUserNamespace(field string, options *runtimeapi.NamespaceOption, facts Facts) error {
	if user := options.GetUsernsOptions(); user != nil && user.GetMode() != runtimeapi.NamespaceMode_NODE {
		return facts.refuse(UserNamespaces, field+"namespace_options.userns_options")
	}
	return nil
}

func checkSELinux(field string, options *runtimeapi.SELinuxOption, facts Facts) error {
	unconfined := options.GetType() == request.SuperPrivileged || options.GetUser()+options.GetRole()+options.GetType()+options.GetLevel() == ""
	if unconfined || facts.SELinux {
		return nil
	}
	return facts.refuse(SELinuxOptions, field+"selinux_options")
}

func checkCapabilities(config *runtimeapi.ContainerConfig, facts Facts) error {
	asked, err := request.CapabilitiesOf(config)
	if err != nil || len(asked.Ambient) == 0 {
		return nil //nolint:nilerr // check.Container reports it
	}
	return facts.refuse(AmbientCapabilities, "config.linux.security_context.capabilities.add_ambient_capabilities")
}

func checkMounts(config *runtimeapi.ContainerConfig, facts Facts) error {
	for i, m := range config.GetMounts() {
		if err := checkMount(i, m, facts); err != nil {
			return err
		}
	}
	return nil
}

func checkMount(i int, m *runtimeapi.Mount, facts Facts) error {
	relabels := m.GetSelinuxRelabel() && facts.SELinux
	for _, c := range []struct {
		has              bool
		requested, field string
	}{
		{m.GetImage() != nil, ImageMounts, "image"},
		{len(m.GetUidMappings()) > 0, MappedMounts, "uidMappings"},
		{len(m.GetGidMappings()) > 0, MappedMounts, "gidMappings"},
		{m.GetRecursiveReadOnly(), RecursiveReadOnly, "recursive_read_only"},
		{len(m.GetMountOptions()) > 0, MountOptions, "mount_options"},
		{relabels && m.GetRecursiveReadOnly(), RelabelledReadOnly, "selinux_relabel"},
		{relabels && strings.Contains(m.GetHostPath()+m.GetContainerPath(), ":"), RelabelledColon, "selinux_relabel"},
	} {
		if !c.has {
			continue
		}
		if err := facts.refuse(c.requested, fielderror.Index("config.mounts", i, c.field)); err != nil {
			return err
		}
	}
	return nil
}

// checkNull refuses what hides /dev/null, or makes it another device: programs and the OCI runtime need
// it, and only newer runtimes say so.
func checkNull(config *runtimeapi.ContainerConfig) error {
	const null = "/dev/null"
	for i, m := range config.GetMounts() {
		if path.Clean(m.GetContainerPath()) == null && path.Clean(m.GetHostPath()) != null {
			return fielderror.Invalid(fielderror.Index("config.mounts", i, "container_path"), "%q is not /dev/null, which containers need", m.GetHostPath())
		}
	}
	for i, d := range config.GetDevices() {
		if path.Clean(request.DevicePath(d)) != null {
			continue
		}
		access := d.GetPermissions()
		if path.Clean(d.GetHostPath()) != null || !strings.Contains(access, "r") || !strings.Contains(access, "w") {
			return fielderror.Invalid(fielderror.Index("config.devices", i, ""), "%s with permissions %q is not a /dev/null that can be read and written", d.GetHostPath(), access)
		}
	}
	return nil
}

func checkDevices(config *runtimeapi.ContainerConfig, facts Facts) error {
	names, err := request.CDIDevices(config)
	if err != nil || len(names) == 0 {
		return nil //nolint:nilerr // check.Container reports it
	}
	return facts.refuse(CDIDevices, "config.CDI_devices")
}

// checkAnnotations refuses what annotations request of berth's own root filesystems.
func checkAnnotations(config *runtimeapi.ContainerConfig, facts Facts) error {
	for _, name := range []string{request.AnnotationStorage, request.AnnotationVolumes} {
		if _, asked := config.GetAnnotations()[name]; asked {
			return facts.refuse(OwnRootfs, request.AnnotationField(name))
		}
	}
	return nil
}
