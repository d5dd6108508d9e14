package check

import (
	"errors"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Sandbox judges a sandbox's request before anything is made for it: kind
// Invalid for values that are wrong, Unsupported for demands that berth does not
// honour yet. Neutral values of both sorts pass.
func Sandbox(config *runtimeapi.PodSandboxConfig) error {
	if config == nil {
		return fielderror.Invalid("config", "is missing")
	}
	return errors.Join(
		checkPodMetadata(config.GetMetadata()),
		checkHostname(config.GetHostname()),
		checkLogDirectory(config.GetLogDirectory()),
		checkDNS(config.GetDnsConfig()),
		checkPorts(config),
		checkMap("config.labels", config.GetLabels()),
		checkMap("config.annotations", config.GetAnnotations()),
		checkCgroupns(config.GetAnnotations(), request.SandboxSecurity(config).GetPrivileged(), request.HasUserNamespace(config)),
		checkSandboxLinux(config),
		checkNoWindows(config.GetWindows() != nil),
	)
}

func checkSandboxLinux(config *runtimeapi.PodSandboxConfig) error {
	linux := config.GetLinux()
	security := linux.GetSecurityContext()
	if err := checkLength("config.linux.cgroup_parent", linux.GetCgroupParent()); err != nil {
		return err
	}
	if parent := linux.GetCgroupParent(); request.HasControl(parent) || hasDotDot(parent) || strings.Contains(parent, ":") {
		return fielderror.Invalid("config.linux.cgroup_parent", "%q is no cgroup", parent)
	}
	return errors.Join(
		checkSandboxUser(security),
		checkNamespaces(security.GetNamespaceOptions(), true),
		checkSELinux(security.GetSelinuxOptions()),
		checkSeccomp(security.GetSeccomp(), request.OldSeccomp(security)),
		checkAppArmor(security.GetApparmor(), ""),
		checkSysctls(linux.GetSysctls(), security.GetNamespaceOptions()),
		Resources("config.linux.overhead", linux.GetOverhead()),
		Resources(request.FieldCreate, linux.GetResources()),
	)
}

func checkSandboxUser(security *runtimeapi.LinuxSandboxSecurityContext) error {
	const field = "config.linux.security_context."
	if security.GetRunAsGroup() != nil && security.GetRunAsUser() == nil {
		return fielderror.Invalid(field+"run_as_group", "is specified without run_as_user")
	}
	return errors.Join(
		checkIDValue(field+"run_as_user", security.GetRunAsUser()),
		checkIDValue(field+"run_as_group", security.GetRunAsGroup()),
		checkGroups(security.GetSupplementalGroups(), security.GetSupplementalGroupsPolicy()),
	)
}

func checkNoWindows(present bool) error {
	if present {
		return fielderror.Unsupported("config.windows", "this is Linux")
	}
	return nil
}
