// Package request reads what a CRI request asks for: the fields of the security context,
// annotations, and what older clients send in their place.
//
// It trusts the request: package check has passed it. It is pure.
package request

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Security is a container's security context, nil where the request has none.
func Security(config *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
	return config.GetLinux().GetSecurityContext()
}

// SandboxSecurity is a sandbox's security context, nil where the request has none.
func SandboxSecurity(config *runtimeapi.PodSandboxConfig) *runtimeapi.LinuxSandboxSecurityContext {
	return config.GetLinux().GetSecurityContext()
}

// HostNetwork reports whether a sandbox is in the host's network namespace.
func HostNetwork(config *runtimeapi.PodSandboxConfig) bool {
	return SandboxSecurity(config).GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// The fields that limits are in: of a new container, of one that is updated, and of a
// sandbox that is updated.
const (
	FieldCreate        = "config.linux.resources"
	FieldUpdate        = "linux"
	FieldUpdateSandbox = "resources"
)

// SuperPrivileged is the type of SELinux that confines nothing. A request for it is one for no
// confinement, which a host without SELinux honours, too.
const SuperPrivileged = "spc_t"

// DevicePath is the path of a device in the container.
func DevicePath(d *runtimeapi.Device) string {
	if to := d.GetContainerPath(); to != "" {
		return to
	}
	return d.GetHostPath()
}
