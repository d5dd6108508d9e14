// Package check refuses CRI requests that the engine cannot honour, before anything is made
// for them: kind Invalid for values that are wrong, Unsupported for demands that berth does
// not honour. Neutral values of both sorts pass. Errors begin with the field's name.
//
// Package cri/shape has refused malformed fields before: names, host ports, log paths and
// paths of mounts are not checked again. What has passed both is trusted afterwards.
package check

import (
	"errors"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Sandbox checks the config of a sandbox.
func Sandbox(config *runtimeapi.PodSandboxConfig) error {
	return errors.Join(
		checkUntrusted(config.GetAnnotations()),
		checkCgroupns(config.GetAnnotations(), request.SandboxSecurity(config).GetPrivileged(), request.HasUserNamespace(config)),
		checkSandboxLinux(config),
		checkNoWindows(config.GetWindows() != nil),
	)
}

// untrusted is the annotation by which containerd once selected the runtime of a pod. It is from a time before
// RuntimeClass.
const untrusted = "io.kubernetes.cri.untrusted-workload"

func checkUntrusted(annotations map[string]string) error {
	if annotations[untrusted] != "true" {
		return nil
	}
	return fielderror.Unsupported("config.annotations["+strconv.Quote(untrusted)+"]",
		"it selects no runtime: name a handler by a RuntimeClass (runtimeClassName of the pod), and leave the annotation out")
}

func checkSandboxLinux(config *runtimeapi.PodSandboxConfig) error {
	linux := config.GetLinux()
	security := linux.GetSecurityContext()
	if err := checkLength("config.linux.cgroup_parent", linux.GetCgroupParent()); err != nil {
		return err
	}
	if parent := linux.GetCgroupParent(); request.HasControl(parent) || hasDotDot(parent) || strings.Contains(parent, ":") {
		return fielderror.Invalid("config.linux.cgroup_parent", "%q is not a cgroup", parent)
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
