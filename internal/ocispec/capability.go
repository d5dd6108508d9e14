package ocispec

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/request"
)

// CapabilitySets are a container's capabilities, each set in the kernel's order.
type CapabilitySets struct {
	// Permitted is the bounding, the permitted and the effective set.
	Permitted []string
	// Ambient is the ambient and the inheritable set, a part of Permitted: what a
	// program keeps that is not root's. Nothing is inheritable without it.
	Ambient []string
}

// Capabilities computes the container's capabilities: the default set (nil for
// request.DefaultCapabilities), ALL added or dropped, then single ones added, then single ones
// dropped; at most what the host has. An ambient one is added to every set, and one that
// is dropped is in none.
func Capabilities(config *runtimeapi.ContainerConfig, host Host, defaults []string) (CapabilitySets, error) {
	if defaults == nil {
		defaults = request.DefaultCapabilities()
	}
	asked, err := request.CapabilitiesOf(config)
	if err != nil {
		return CapabilitySets{}, err
	}
	permitted := compose(defaults, slices.Concat(asked.Add, asked.Ambient), asked.Drop)
	ambient := compose(nil, asked.Ambient, asked.Drop)
	if request.Security(config).GetPrivileged() {
		permitted, ambient = compose(request.AllCapabilities(), nil, nil), compose(nil, asked.Ambient, nil)
	}
	return CapabilitySets{Permitted: availableOn(host, permitted), Ambient: availableOn(host, ambient)}, nil
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
		set(request.AllCapabilities(), true)
	}
	if slices.Contains(drop, "ALL") {
		clear(has)
	}
	set(add, true)
	set(drop, false)
	return has
}

// availableOn lists the capabilities of set that the host has; never nil.
func availableOn(host Host, set map[string]bool) []string {
	names := []string{}
	for _, name := range request.AllCapabilities() {
		if set[name] && slices.Contains(host.Capabilities, name) {
			names = append(names, name)
		}
	}
	return names
}
