package cluster

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/cluster/config"
)

// usualHostDirs are directories of hosts.toml files that berth reads without being told.
func usualHostDirs() []string {
	return []string{berthRuntime().registriesDir, containerdRuntime().registriesDir, "/etc/docker/certs.d"}
}

// ofContainerd is what containerd's configuration in a description means to a node whose
// runtime is berth: its registries where the node has no entry of its own, and directories
// of hosts.toml files that berth does not read without being told.
func ofContainerd(c *config.Cluster, n config.Node) (registries []config.Registry, hostDirs []string, err error) {
	patches, err := c.ReadContainerdPatches()
	if err != nil {
		return nil, nil, err
	}
	registries = withRegistries(n.Registries, patches.Registries)
	for _, dir := range patches.HostDirs {
		if path.IsAbs(dir) && !slices.Contains(usualHostDirs(), path.Clean(dir)) {
			hostDirs = append(hostDirs, path.Clean(dir))
		}
	}
	return registries, hostDirs, nil
}

// imageConfig is what berth in a node is told of directories of hosts.toml files; "" where
// there are no others than the usual ones.
func imageConfig(hostDirs []string) (string, error) {
	if len(hostDirs) == 0 {
		return "", nil
	}
	text, err := toml.Marshal(map[string]any{"image": map[string]any{"registry_config_dirs": append(usualHostDirs(), hostDirs...)}})
	return string(text), err
}

// withRegistries adds those that there is no entry for.
func withRegistries(own, more []config.Registry) []config.Registry {
	all := slices.Clone(own)
	for _, reg := range more {
		if !slices.ContainsFunc(all, func(r config.Registry) bool { return r.Host == reg.Host }) {
			all = append(all, reg)
		}
	}
	return all
}

// unused tells what of a description and of the environment of a node means nothing
// where the node's runtime is berth.
func unused(c *config.Cluster, env map[string]string) ([]string, error) {
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

// warnUnused says it once for all nodes, where there are such.
func (m *creation) warnUnused() error {
	if !slices.ContainsFunc(slices.Collect(maps.Values(m.runtimes)), nodeRuntime.ours) {
		return nil
	}
	texts, err := unused(m.Cluster, m.plan.Containers[len(m.plan.Containers)-1].Env)
	for _, text := range texts {
		m.Warn(text)
	}
	return err
}
