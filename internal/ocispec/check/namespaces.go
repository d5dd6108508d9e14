package check

import (
	"math"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

// checkNamespaces judges modes by themselves.
func checkNamespaces(options *runtimeapi.NamespaceOption, ofSandbox bool) error {
	const field = "config.linux.security_context.namespace_options."
	for _, ns := range []struct {
		name string
		mode runtimeapi.NamespaceMode
	}{{"network", options.GetNetwork()}, {"ipc", options.GetIpc()}} {
		switch ns.mode {
		case runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE:
		case runtimeapi.NamespaceMode_CONTAINER:
			return fielderror.Unsupported(field+ns.name, "CONTAINER is not supported")
		default:
			return fielderror.Invalid(field+ns.name, "%s cannot be its mode", ns.mode)
		}
	}
	switch mode := options.GetPid(); mode {
	case runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
	case runtimeapi.NamespaceMode_TARGET:
		if ofSandbox {
			return fielderror.Invalid(field+"pid", "TARGET cannot be a sandbox's mode")
		}
		if options.GetTargetId() == "" {
			return fielderror.Invalid(field+"target_id", "is missing, but pid is TARGET")
		}
	default:
		return fielderror.Invalid(field+"pid", "unknown mode %d", mode)
	}
	return checkUserNamespace(options)
}

// checkSharedNamespaces judges modes against the sandbox's: a container cannot
// leave what its pod is in.
func checkSharedNamespaces(container, sandbox *runtimeapi.NamespaceOption) error {
	const field = "config.linux.security_context.namespace_options."
	for _, ns := range []struct {
		name      string
		own, pods runtimeapi.NamespaceMode
	}{
		{"network", container.GetNetwork(), sandbox.GetNetwork()},
		{"ipc", container.GetIpc(), sandbox.GetIpc()},
	} {
		if ns.own == runtimeapi.NamespaceMode_NODE && ns.pods != runtimeapi.NamespaceMode_NODE {
			return fielderror.Invalid(field+ns.name, "NODE, but the sandbox has its own")
		}
	}
	return nil
}

func checkUserNamespace(options *runtimeapi.NamespaceOption) error {
	const field = "config.linux.security_context.namespace_options.userns_options"
	users := options.GetUsernsOptions()
	switch mode := users.GetMode(); {
	case users == nil:
		return nil
	case mode == runtimeapi.NamespaceMode_NODE:
		if len(users.GetUids()) > 0 || len(users.GetGids()) > 0 {
			return fielderror.Invalid(field, "has mappings, but its mode is NODE")
		}
		return nil
	case mode != runtimeapi.NamespaceMode_POD:
		return fielderror.Invalid(field+".mode", "%s cannot be its mode", mode)
	}
	if err := checkIDMappings(field+".uids", users.GetUids()); err != nil {
		return err
	}
	if err := checkIDMappings(field+".gids", users.GetGids()); err != nil {
		return err
	}
	// Neither procfs nor a message queue can be mounted for a namespace that the
	// user namespace does not own, and Kubernetes allows neither.
	for _, ns := range []struct {
		name string
		mode runtimeapi.NamespaceMode
	}{{"pid", options.GetPid()}, {"ipc", options.GetIpc()}} {
		if ns.mode == runtimeapi.NamespaceMode_NODE {
			return fielderror.Invalid(field, "a user namespace cannot be combined with the host's %s namespace", ns.name)
		}
	}
	return nil
}

// checkIDMappings demands one range that begins at the container's root, as every
// runtime does.
func checkIDMappings(field string, mappings []*runtimeapi.IDMapping) error {
	if len(mappings) != 1 {
		return fielderror.Invalid(field, "only one mapping is supported, got %d", len(mappings))
	}
	m := mappings[0]
	switch {
	case m.GetContainerId() != 0:
		return fielderror.Invalid(fielderror.Index(field, 0, "container_id"), "%d: the container's id 0 must be mapped", m.GetContainerId())
	case m.GetLength() == 0:
		return fielderror.Invalid(fielderror.Index(field, 0, "length"), "is 0")
	case uint64(m.GetHostId())+uint64(m.GetLength()) > math.MaxUint32:
		return fielderror.Invalid(fielderror.Index(field, 0, ""), "%d ids from %d on are more than there are", m.GetLength(), m.GetHostId())
	}
	return nil
}

// checkSharedUserNamespace: a container is in its pod's user namespace, and may say
// so.
func checkSharedUserNamespace(own, pods *runtimeapi.UserNamespace) error {
	const field = "config.linux.security_context.namespace_options.userns_options"
	if own == nil || proto.Equal(own, pods) || pods == nil && own.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return fielderror.Invalid(field, "user namespace config for sandbox is different from container: %v, not %v", pods, own)
}
