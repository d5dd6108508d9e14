package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/patch"
	"github.com/berthrun/berth/internal/errs"
)

// kubeadmKinds are the documents of a kubeadm configuration.
func kubeadmKinds() []string {
	return []string{"ClusterConfiguration", "InitConfiguration", "JoinConfiguration", "KubeletConfiguration", "KubeProxyConfiguration"}
}

func (c checker) patches() {
	c.kubeadm("", c.c.KubeadmConfigPatches, c.c.KubeadmConfigPatchesJSON6902, func(string) string { return "" })
	first := true
	for _, p := range c.c.parts() {
		begins := first && p.Role == ControlPlane && p.size() > 0
		c.kubeadm(p.at+".", p.KubeadmConfigPatches, p.KubeadmConfigPatchesJSON6902, func(kind string) string { return p.unread(kind, begins) })
		first = first && !begins
	}
	for i, text := range c.c.ContainerdConfigPatches {
		at := fmt.Sprintf("containerdConfigPatches[%d]", i)
		if err := patch.CheckTOML(text); err != nil && !c.Broken(at) {
			c.Fault(at, "is no TOML: %s", bare(err))
		}
	}
	for i, text := range c.c.ContainerdConfigPatchesJSON6902 {
		at := fmt.Sprintf("containerdConfigPatchesJSON6902[%d]", i)
		if err := patch.CheckOps(text); err != nil && !c.Broken(at) {
			c.Fault(at, "%s", bare(err))
		}
	}
}

// unread says why kubeadm does not read documents of a kind on a node; "" if it does. The cluster
// begins with one control plane: kubeadm reads the cluster's settings there, and on all other nodes
// from the API.
func (p part) unread(kind string, begins bool) string {
	switch {
	case begins && kind == "JoinConfiguration" && p.size() < 2:
		return "the cluster begins with this node, which does not join; want InitConfiguration"
	case !begins && kind == "InitConfiguration":
		return "the cluster begins with the first control plane, and this node joins; want JoinConfiguration"
	case !begins && slices.Contains([]string{"ClusterConfiguration", "KubeletConfiguration", "KubeProxyConfiguration"}, kind):
		return fmt.Sprintf("kubeadm reads %s on the first control plane, for all nodes; put it beside nodes in this file", kind)
	}
	return ""
}

// size is how many nodes a part describes.
func (p part) size() int {
	if p.pool == nil {
		return 1
	}
	return p.pool.Size()
}

// kubeadm checks patches. unread says why no node reads a kind.
func (c checker) kubeadm(prefix string, merges []string, ops []PatchJSON6902, unread func(kind string) string) {
	for i, text := range merges {
		at := fmt.Sprintf("%skubeadmConfigPatches[%d]", prefix, i)
		if c.Broken(at) {
			continue
		}
		parsed, err := patch.ParseMerge(text)
		if err != nil {
			c.Fault(at, "%s", bare(err))
		}
		for _, m := range parsed {
			c.target(at, m.Kind, unread)
		}
	}
	for i, p := range ops {
		at := fmt.Sprintf("%skubeadmConfigPatchesJSON6902[%d]", prefix, i)
		if c.Broken(at) {
			continue
		}
		if p.Group != "" && p.Version == "" {
			c.Fault(at+".version", "is missing: the group %s has several", p.Group)
		}
		if _, err := patch.ParseJSON6902(p.Group, p.Version, p.Kind, p.Patch); err != nil {
			c.Fault(at+".patch", "%s", bare(err))
		}
		c.target(at+".kind", p.Kind, unread)
	}
}

// target warns of a patch that changes nothing. kind accepts it silently, so it is not a fault.
func (c checker) target(at, kind string, unread func(kind string) string) {
	if !slices.Contains(kubeadmKinds(), kind) {
		c.warn(at, "the patch changes nothing: there is no document of kind %s; there are %s", kind, strings.Join(kubeadmKinds(), ", "))
		return
	}
	if why := unread(kind); why != "" {
		c.warn(at, "the patch changes nothing: %s", why)
	}
}

// bare is an error's text on one line, without its kind, which Faults have anyway.
func bare(err error) string {
	text := strings.TrimSuffix(err.Error(), ": "+errs.Invalid.Error())
	if errors.Is(err, errs.Invalid) {
		text = strings.TrimPrefix(text, errs.Invalid.Error()+": ")
	}
	return strings.Join(strings.Fields(text), " ")
}
