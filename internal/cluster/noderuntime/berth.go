package noderuntime

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/berthtoml"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/registries"
)

// DaemonFile is the configuration of berth in a node.
const DaemonFile = "/etc/berth/berth.toml"

// DaemonConfig returns the configuration of berth in a node. Pods that demand SELinux labels run
// there, as Kubernetes expects of any node. The kubelet passes the node's own pod subnet to berth.
// hostDirs are directories of hosts.toml files beside the default ones.
func DaemonConfig(net config.Networking, cgroupDriver string, hostDirs []string) (string, error) {
	file := berthtoml.File{CgroupDriver: cgroupDriver, SELinux: "lenient"}
	if len(hostDirs) > 0 {
		file.RegistryDirs = append(defaultHostDirs(), hostDirs...)
	}
	if net.DisableDefaultCNI {
		file.Network.Mode = "cni"
		return file.Text("# Written by `berth cluster`. The node waits for a network that somebody installs.\n")
	}
	subnets, err := net.PodSubnets()
	if err != nil {
		return "", err
	}
	file.Network.Mode, file.Network.AwaitPodCIDR = "builtin", true
	for _, s := range subnets {
		file.Network.ClusterSubnets = append(file.Network.ClusterSubnets, s.Masked().String())
	}
	return file.Text("# Written by `berth cluster`. The kubelet passes the node's subnet to berth, and routes lead to\n# the pods of other nodes.\n")
}

// defaultHostDirs are the directories of hosts.toml files that berth reads by default.
func defaultHostDirs() []string {
	return []string{Berth().RegistriesDir, Containerd().RegistriesDir, "/etc/docker/certs.d"}
}

// BerthRegistries translates containerd's configuration in a description for a node whose runtime
// is berth. It returns the node's registries with those of containerd that the node has no entry
// for, and the directories of hosts.toml files that berth does not read by default.
func BerthRegistries(c *config.Cluster, n config.Node) (all []registries.Registry, hostDirs []string, err error) {
	patches, err := c.ReadContainerdPatches()
	if err != nil {
		return nil, nil, err
	}
	all = AddRegistries(n.Registries, patches.Registries)
	for _, dir := range patches.HostDirs {
		if path.IsAbs(dir) && !slices.Contains(defaultHostDirs(), path.Clean(dir)) {
			hostDirs = append(hostDirs, path.Clean(dir))
		}
	}
	return all, hostDirs, nil
}

// AddRegistries returns own with those of more for whose hosts own has no entry.
func AddRegistries(own, more []registries.Registry) []registries.Registry {
	all := slices.Clone(own)
	for _, reg := range more {
		if !slices.ContainsFunc(all, func(r registries.Registry) bool { return r.Host == reg.Host }) {
			all = append(all, reg)
		}
	}
	return all
}

// IgnoredByBerth returns a warning for each setting of a description, and of a node's environment,
// that has no effect where the node's runtime is berth.
func IgnoredByBerth(c *config.Cluster, env map[string]string) ([]string, error) {
	patches, err := c.ReadContainerdPatches()
	if err != nil {
		return nil, err
	}
	var all []string
	if len(patches.Ignored) > 0 {
		all = append(all, "containerdConfigPatches: these settings of containerd mean nothing to nodes whose runtime is berth, and are left out: "+strings.Join(patches.Ignored, ", "))
	}
	for _, dir := range patches.HostDirs {
		if !path.IsAbs(dir) {
			all = append(all, fmt.Sprintf("containerdConfigPatches: config_path %q is left out; want an absolute path", dir))
		}
	}
	const snapshotter = "KIND_EXPERIMENTAL_CONTAINERD_SNAPSHOTTER"
	if value := env[snapshotter]; value != "" {
		all = append(all, fmt.Sprintf("%s=%s means nothing to nodes whose runtime is berth: its snapshots are overlays", snapshotter, value))
	}
	return all, nil
}
