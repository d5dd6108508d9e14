package translate

import (
	"errors"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// CheckSandbox refuses a sandbox that is wrong, and one that the engine cannot honour.
func CheckSandbox(config *runtimeapi.PodSandboxConfig, facts Facts) error {
	const field = "config.linux.security_context."
	security := request.SandboxSecurity(config)
	return errors.Join(
		check.Sandbox(config),
		checkUserNamespace(field, security.GetNamespaceOptions()),
		checkSELinux(field, security.GetSelinuxOptions(), facts),
	)
}

// CheckContainer does the same for a container.
func CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig, facts Facts) error {
	const field = "config.linux.security_context."
	security := request.Security(config)
	return errors.Join(
		check.Container(config, sandbox),
		checkUserNamespace(field, security.GetNamespaceOptions()),
		checkSELinux(field, security.GetSelinuxOptions(), facts),
		checkCapabilities(config),
		checkGroups(config),
		checkMounts(config, facts),
		checkDevices(config, facts),
		checkAnnotations(config),
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
			return fielderror.Unsupported(fielderror.Index(field+".hugepage_limits", i, "limit"),
				"the Docker engine has no limits of huge pages")
		}
	}
	for key := range res.GetUnified() {
		if key != "memory.oom.group" { // sent for every pod
			return fielderror.Unsupported(field+".unified", "%q: the Docker engine sets no files of a cgroup", key)
		}
	}
	if res.GetMemorySwapLimitInBytes() > 0 && !facts.SwapLimit && res.GetMemorySwapLimitInBytes() != res.GetMemoryLimitInBytes() {
		return fielderror.Unsupported(field+".memory_swap_limit_in_bytes", "the Docker engine cannot limit swap on this host")
	}
	return nil
}

func checkUserNamespace(field string, options *runtimeapi.NamespaceOption) error {
	if user := options.GetUsernsOptions(); user != nil && user.GetMode() != runtimeapi.NamespaceMode_NODE {
		return fielderror.Unsupported(field+"namespace_options.userns_options", "the Docker engine has no user namespace of a single pod")
	}
	return nil
}

func checkSELinux(field string, options *runtimeapi.SELinuxOption, facts Facts) error {
	if options == nil || options.GetUser()+options.GetRole()+options.GetType()+options.GetLevel() == "" || facts.SELinux {
		return nil
	}
	return fielderror.Unsupported(field+"selinux_options", "SELinux is not enabled in the Docker engine (selinux-enabled)")
}

func checkCapabilities(config *runtimeapi.ContainerConfig) error {
	asked, err := request.CapabilitiesOf(config)
	if err != nil || len(asked.Ambient) == 0 {
		return nil //nolint:nilerr // check.Container reports it
	}
	return fielderror.Unsupported("config.linux.security_context.capabilities.add_ambient_capabilities", "the Docker engine has no ambient capabilities")
}

// checkGroups: the engine always adds the groups that the image's /etc/group has for the user,
// unless the request names a group.
func checkGroups(config *runtimeapi.ContainerConfig) error {
	security := request.Security(config)
	if security.GetSupplementalGroupsPolicy() != runtimeapi.SupplementalGroupsPolicy_Strict || security.GetRunAsGroup() != nil {
		return nil
	}
	return fielderror.Unsupported("config.linux.security_context.supplemental_groups_policy",
		"Strict needs run_as_group with the Docker engine, which adds the groups of the image otherwise")
}

func checkMounts(config *runtimeapi.ContainerConfig, facts Facts) error {
	for i, m := range config.GetMounts() {
		at := func(name string) string { return fielderror.Index("config.mounts", i, name) }
		switch {
		case m.GetImage() != nil && !facts.has(apiImageMounts):
			return fielderror.Unsupported(at("image"), "mounts of images need version %s of the Docker engine's API; this engine has %s", apiImageMounts, facts.APIVersion)
		case len(m.GetUidMappings())+len(m.GetGidMappings()) > 0:
			return fielderror.Unsupported(at("uid_mappings"), "the Docker engine has no id-mapped mounts")
		case m.GetRecursiveReadOnly() && !facts.RecursiveReadOnly():
			return fielderror.Unsupported(at("recursive_read_only"), "recursive read-only mounts need version %s of the Docker engine's API; this engine has %s", apiRecursiveReadOnly, facts.APIVersion)
		case len(m.GetMountOptions()) > 0:
			return fielderror.Unsupported(at("mount_options"), "the Docker engine has no options of mounts")
		case m.GetSelinuxRelabel() && facts.SELinux && m.GetRecursiveReadOnly():
			return fielderror.Unsupported(at("selinux_relabel"), "the Docker engine cannot relabel a mount that is recursively read-only")
		case m.GetSelinuxRelabel() && facts.SELinux && strings.Contains(m.GetHostPath(), ":"):
			return fielderror.Unsupported(at("host_path"), "the Docker engine cannot relabel %q, since it has a colon", m.GetHostPath())
		}
	}
	return nil
}

func checkDevices(config *runtimeapi.ContainerConfig, facts Facts) error {
	names, err := request.CDIDevices(config)
	if err != nil || len(names) == 0 || facts.has(apiCDI) {
		return nil //nolint:nilerr // check.Container reports it
	}
	return fielderror.Unsupported("config.CDI_devices", "CDI devices need version %s of the Docker engine's API; this engine has %s", apiCDI, facts.APIVersion)
}

// checkAnnotations refuses what annotations request of berth's own root filesystems.
func checkAnnotations(config *runtimeapi.ContainerConfig) error {
	for _, name := range []string{request.AnnotationStorage, request.AnnotationVolumes} {
		if _, asked := config.GetAnnotations()[name]; asked {
			return fielderror.Unsupported(request.AnnotationField(name), "engine docker does not make the root filesystems of containers")
		}
	}
	return nil
}
