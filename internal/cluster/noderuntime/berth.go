package noderuntime

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/registries"
)

// DaemonFile is the configuration of berth in a node.
const DaemonFile = "/etc/berth/berth.toml"

// DaemonConfig returns the configuration of berth in a node. Pods that demand SELinux labels run
// there, as Kubernetes expects of any node. The kubelet passes the node's own pod subnet to berth.
// hostDirs are directories of hosts.toml files beside the default ones.
func DaemonConfig(net config.Networking, cgroupDriver string, hostDirs []string) (string, error) {
	image, err := imageConfig(hostDirs)
	if err != nil {
		return "", err
	}
	runtime := "[runtime]\nselinux = 'lenient'\ncgroup_driver = '" + cgroupDriver + "'\n"
	if net.DisableDefaultCNI {
		return "# Of `berth cluster`: whoever installs a network brings it.\n" + runtime + "[network]\nmode = 'cni'\n" + image, nil
	}
	subnets, err := net.PodSubnets()
	if err != nil {
		return "", err
	}
	var quoted []string
	for _, s := range subnets {
		quoted = append(quoted, "'"+s.Masked().String()+"'")
	}
	return "# Of `berth cluster`: the node's subnet is what the kubelet tells, and other nodes' pods\n# are reached by routes.\n" +
		runtime + "[network]\nmode = 'builtin'\nawait_pod_cidr = true\ncluster_subnets = [" + strings.Join(quoted, ", ") + "]\n" + image, nil
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

// imageConfig returns the part of berth's configuration that names directories of hosts.toml files;
// "" where there are none but the default ones.
func imageConfig(hostDirs []string) (string, error) {
	if len(hostDirs) == 0 {
		return "", nil
	}
	text, err := toml.Marshal(map[string]any{"image": map[string]any{"registry_config_dirs": append(defaultHostDirs(), hostDirs...)}})
	return string(text), err
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
