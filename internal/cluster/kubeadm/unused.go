package kubeadm

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/patch"
)

// Unused names the patches that change nothing, because no node's kubeadm gets a document of their
// kind and version. A file may have a patch for each version: it is enough that one of them is
// used. versions are the Kubernetes versions by container name.
func Unused(c *config.Cluster, versions map[string]string) ([]string, error) {
	var all []string
	for _, n := range c.Nodes {
		// Documents need addresses, but no patch depends on them.
		none := Node{Cluster: c, Node: n, Version: versions[c.ContainerName(n)], IPv4: netip.IPv4Unspecified(), IPv6: netip.IPv6Unspecified()}
		b, err := newBuilder(none)
		if err != nil {
			return nil, fmt.Errorf("cannot find which patches %s uses: %w", c.ContainerName(n), err)
		}
		whose := "node " + c.ContainerName(n)
		if n.Pool != "" {
			whose = "pool " + n.Pool
		}
		for _, of := range []struct {
			whose  string
			merges []string
			ops    []config.PatchJSON6902
		}{
			{"", c.KubeadmConfigPatches, c.KubeadmConfigPatchesJSON6902},
			{whose + ": ", n.KubeadmConfigPatches, n.KubeadmConfigPatchesJSON6902},
		} {
			texts, err := b.unused(of.merges, of.ops)
			if err != nil {
				return nil, err
			}
			for _, text := range texts {
				if text = of.whose + text; !slices.Contains(all, text) {
					all = append(all, text)
				}
			}
		}
	}
	return all, nil
}

// aim is the document that a patch is for, and the patch's path.
type aim struct{ at, version, kind string }

// unused are the patches of one list.
func (b *builder) unused(merges []string, ops []config.PatchJSON6902) ([]string, error) {
	aims, err := aimsOf(merges, ops)
	if err != nil {
		return nil, err
	}
	used := func(kind string) bool {
		return slices.ContainsFunc(aims, func(a aim) bool { return a.kind == kind && (a.version == "" || a.version == b.versionOf(kind)) })
	}
	var all []string
	for _, a := range aims {
		version := b.versionOf(a.kind)
		switch {
		case a.kind == "KubeProxyConfiguration" && version == "":
			all = append(all, a.at+": the patch changes nothing: there is no kube-proxy, as networking.kubeProxyMode is none")
		case version != "" && a.version != "" && a.version != version && !used(a.kind):
			all = append(all, fmt.Sprintf("%s: the patch changes nothing: it is for %s of %s, and Kubernetes %s is given %s; write it for that, or without a version", a.at, a.kind, a.version, b.Version, version))
		}
	}
	return all, nil
}

func aimsOf(merges []string, ops []config.PatchJSON6902) ([]aim, error) {
	var aims []aim
	for i, text := range merges {
		parsed, err := patch.ParseMerge(text)
		if err != nil {
			return nil, err
		}
		for _, m := range parsed {
			aims = append(aims, aim{fmt.Sprintf("kubeadmConfigPatches[%d]", i), m.APIVersion, m.Kind})
		}
	}
	for i, o := range ops {
		parsed, err := patch.ParseJSON6902(o.Group, o.Version, o.Kind, o.Patch)
		if err != nil {
			return nil, err
		}
		aims = append(aims, aim{fmt.Sprintf("kubeadmConfigPatchesJSON6902[%d]", i), parsed.APIVersion, parsed.Kind})
	}
	return aims, nil
}

// versionOf is the version of the document of a kind; "" for none.
func (b *builder) versionOf(kind string) string {
	for _, doc := range b.documents() {
		if doc["kind"] == kind {
			version, _ := doc["apiVersion"].(string)
			return version
		}
	}
	return ""
}
