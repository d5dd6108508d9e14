package ocispec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// namespacesOf lists what the container has of its own and what it joins; what it
// shares with the host is not in the list.
func namespacesOf(in Input) ([]specs.LinuxNamespace, error) {
	namespaces := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if !request.SharesCgroupns(in.Config, in.SandboxConfig) {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	join := func(kind specs.LinuxNamespaceType, path string) {
		if path != "" {
			namespaces = append(namespaces, specs.LinuxNamespace{Type: kind, Path: path})
		}
	}
	join(specs.UserNamespace, in.Namespaces.User)
	join(specs.NetworkNamespace, in.Namespaces.Net)
	join(specs.IPCNamespace, in.Namespaces.IPC)
	join(specs.UTSNamespace, in.Namespaces.UTS)

	const field = "config.linux.security_context.namespace_options.pid"
	switch mode := request.Security(in.Config).GetNamespaceOptions().GetPid(); mode {
	case runtimeapi.NamespaceMode_CONTAINER:
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
	case runtimeapi.NamespaceMode_NODE:
		// The host's: not in the list.
	case runtimeapi.NamespaceMode_POD:
		// POD is also what a request has that says nothing: the pod's mode decides.
		switch sandboxMode := request.SandboxSecurity(in.SandboxConfig).GetNamespaceOptions().GetPid(); {
		case sandboxMode == runtimeapi.NamespaceMode_CONTAINER:
			namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
		case in.Namespaces.PID == "" && sandboxMode != runtimeapi.NamespaceMode_NODE:
			return nil, fielderror.Invalid(field, "POD, but the sandbox was made with %s and shares no PID namespace", sandboxMode)
		default:
			join(specs.PIDNamespace, in.Namespaces.PID)
		}
	case runtimeapi.NamespaceMode_TARGET:
		if in.Namespaces.Target == "" {
			return nil, fielderror.Invalid(field, "TARGET, but the target container does not run")
		}
		join(specs.PIDNamespace, in.Namespaces.Target)
	default:
		return nil, fielderror.Invalid(field, "unknown mode %d", mode)
	}
	return namespaces, nil
}
