package ocispec

import (
	"math"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// allCapabilities returns the names of the kernel's capabilities, in the kernel's order.
func allCapabilities() []string { return CapabilityNames(math.MaxUint64) }

// DefaultCapabilities is what a container has when nobody says anything.
func DefaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
		"CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE",
		"CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

// CapabilityNames turns a bit mask of the kernel (CapBnd in /proc/PID/status) into
// names; bits without a name are left out.
func CapabilityNames(mask uint64) []string {
	var names []string
	for _, c := range capability.ListKnown() {
		if mask&(1<<c) != 0 {
			names = append(names, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	return names
}

// CapabilitySets are a container's capabilities, each set in the kernel's order.
type CapabilitySets struct {
	// Permitted is the bounding, the permitted and the effective set.
	Permitted []string
	// Ambient is the ambient and the inheritable set, a part of Permitted: what a
	// program keeps that is not root's. Nothing is inheritable without it.
	Ambient []string
}

// Capabilities computes the container's capabilities: the default set (nil for
// DefaultCapabilities), ALL added or dropped, then single ones added, then single ones
// dropped; at most what the host has. An ambient one is added to every set, and one that
// is dropped is in none.
func Capabilities(config *runtimeapi.ContainerConfig, host Host, defaults []string) (CapabilitySets, error) {
	if defaults == nil {
		defaults = DefaultCapabilities()
	}
	security := securityContext(config)
	asked := security.GetCapabilities()
	const field = "config.linux.security_context.capabilities."
	add, err := KernelCapabilities(field+"add_capabilities", asked.GetAddCapabilities())
	if err != nil {
		return CapabilitySets{}, err
	}
	drop, err := KernelCapabilities(field+"drop_capabilities", asked.GetDropCapabilities())
	if err != nil {
		return CapabilitySets{}, err
	}
	ambient, err := KernelCapabilities(field+"add_ambient_capabilities", asked.GetAddAmbientCapabilities())
	if err != nil {
		return CapabilitySets{}, err
	}
	permitted := compose(defaults, slices.Concat(add, ambient), drop)
	raised := compose(nil, ambient, drop)
	if security.GetPrivileged() {
		permitted, raised = compose(allCapabilities(), nil, nil), compose(nil, ambient, nil)
	}
	return CapabilitySets{Permitted: had(permitted, host), Ambient: had(raised, host)}, nil
}

// compose is base with ALL of add and of drop, then with the single names of both.
func compose(base, add, drop []string) map[string]bool {
	has := map[string]bool{}
	set := func(names []string, value bool) {
		for _, name := range names {
			has[name] = value
		}
	}
	set(base, true)
	if slices.Contains(add, "ALL") {
		set(allCapabilities(), true)
	}
	if slices.Contains(drop, "ALL") {
		clear(has)
	}
	set(add, true)
	set(drop, false)
	return has
}

// had lists what of set the host has; never nil.
func had(set map[string]bool, host Host) []string {
	names := []string{}
	for _, name := range allCapabilities() {
		if set[name] && slices.Contains(host.Capabilities, name) {
			names = append(names, name)
		}
	}
	return names
}

// maxCapabilityNames bounds a list of names: every bit that a kernel can have, and
// ALL, twice.
const maxCapabilityNames = 130

// KernelCapabilities brings names as users write them ("net_admin") to the kernel's
// form; ALL stays.
func KernelCapabilities(field string, names []string) ([]string, error) {
	if len(names) > maxCapabilityNames {
		return nil, invalid(field, "%d names are more than the %d that there can be", len(names), maxCapabilityNames)
	}
	known := allCapabilities()
	out := make([]string, 0, len(names))
	for _, name := range names {
		full := strings.ToUpper(name)
		if full != "ALL" && !strings.HasPrefix(full, "CAP_") {
			full = "CAP_" + full
		}
		if full != "ALL" && !slices.Contains(known, full) {
			return nil, invalid(field, "unknown capability %q", name)
		}
		out = append(out, full)
	}
	return out, nil
}
