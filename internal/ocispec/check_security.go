package ocispec

import (
	"errors"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func checkUser(security *runtimeapi.LinuxContainerSecurityContext) error {
	const field = "config.linux.security_context."
	user, name, group := security.GetRunAsUser(), security.GetRunAsUsername(), security.GetRunAsGroup()
	if user != nil && name != "" {
		return invalid(field+"run_as_username", "%q is specified together with run_as_user", name)
	}
	if group != nil && user == nil && name == "" {
		return invalid(field+"run_as_group", "is specified without run_as_user or run_as_username")
	}
	var query userQuery
	var nameErr error
	if name != "" {
		nameErr = parseID(field+"run_as_username", name, &query.name, &query.uid)
	}
	return errors.Join(nameErr, checkIDValue(field+"run_as_user", user), checkIDValue(field+"run_as_group", group))
}

func checkIDValue(field string, id *runtimeapi.Int64Value) error {
	if v := id.GetValue(); v < 0 || v > maxID {
		return invalid(field, "%d: ids are in the range 0-%d", v, maxID)
	}
	return nil
}

func checkGroups(groups []int64, policy runtimeapi.SupplementalGroupsPolicy) error {
	const field = "config.linux.security_context.supplemental_groups"
	if len(groups) > maxGroups {
		return invalid(field, "%d groups are more than the kernel's %d", len(groups), maxGroups)
	}
	for i, gid := range groups {
		if gid < 0 || gid > maxID {
			return invalid(index(field, i, ""), "%d: ids are in the range 0-%d", gid, maxID)
		}
	}
	if _, known := runtimeapi.SupplementalGroupsPolicy_name[int32(policy)]; !known {
		return invalid(field+"_policy", "unknown policy %d", policy)
	}
	return nil
}

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
			return unsupported(field+ns.name, "CONTAINER is not supported")
		default:
			return invalid(field+ns.name, "%s cannot be its mode", ns.mode)
		}
	}
	switch mode := options.GetPid(); mode {
	case runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
	case runtimeapi.NamespaceMode_TARGET:
		if ofSandbox {
			return invalid(field+"pid", "TARGET cannot be a sandbox's mode")
		}
		if options.GetTargetId() == "" {
			return invalid(field+"target_id", "is missing, but pid is TARGET")
		}
	default:
		return invalid(field+"pid", "unknown mode %d", mode)
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
			return invalid(field+ns.name, "NODE, but the sandbox has its own")
		}
	}
	return nil
}

// maxLabelPart bounds each part of a label.
const maxLabelPart = 255

// checkSELinux judges the parts of a label; whether the host's policy knows them is
// found out there.
func checkSELinux(options *runtimeapi.SELinuxOption) error {
	const field = "config.linux.security_context.selinux_options."
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	for _, part := range []struct{ name, value, chars string }{
		{"user", options.GetUser(), letters},
		{"role", options.GetRole(), letters},
		{"type", options.GetType(), letters},
		{"level", options.GetLevel(), letters + ":,"},
	} {
		if len(part.value) > maxLabelPart || !onlyMadeOf(part.value, part.chars) {
			return invalid(field+part.name, "%q is no part of a label", part.value)
		}
	}
	return nil
}

// onlyMadeOf reports whether every character of s is one of chars.
func onlyMadeOf(s, chars string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(chars, r) })
}
