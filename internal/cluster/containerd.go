package cluster

import (
	"cmp"
	"context"
	"fmt"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/patch"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// containerdFile is the configuration of containerd in a node of kindest/node.
const containerdFile = "/etc/containerd/config.toml"

// setUpContainerd makes a node of kindest/node one of this cluster. containerd runs
// already, with the images that the node needs.
func (m *making) setUpContainerd(ctx context.Context, described config.Node) error {
	name := m.Cluster.ContainerName(described)
	text, err := m.kubeadmConfig(described)
	if err != nil {
		return err
	}
	file := provider.File{Path: m.runtimes[name].kubeadmFile, Mode: 0o600, Content: []byte(text)}
	if err := m.Provider.Exec(ctx, name, provider.Command{Files: []provider.File{file}}); err != nil {
		return err
	}
	registries, _, err := m.nodeRegistries(described)
	if err != nil {
		return err
	}
	if err := m.configureContainerd(ctx, name, m.Cluster.Settings, registries); err != nil {
		return m.explain(ctx, name, err)
	}
	return nil
}

// configureContainerd gives the containerd of a node registries and the patches of a
// description, and waits until it answers.
func (c *Clusters) configureContainerd(ctx context.Context, node string, s config.Settings, registries []config.Registry) error {
	files, err := mirrors(containerdRuntime().registriesDir, registries)
	if err != nil {
		return err
	}
	before, err := provider.Output(ctx, c.Provider, node, "cat", containerdFile)
	if err != nil {
		return fmt.Errorf("cannot read containerd's configuration: %w", err)
	}
	now, err := containerdConfig(before, s, len(files) > 0)
	if err != nil {
		return err
	}
	script := awaitContainerd
	if now != before {
		files = append(files, provider.File{Path: containerdFile, Content: []byte(now)})
		script = restartContainerd + script
	}
	if err := c.Provider.Exec(ctx, node, provider.Command{Files: files, Args: []string{"sh", "-c", script}}); err != nil {
		return fmt.Errorf("containerd does not answer: %w", err)
	}
	return nil
}

// Where the host has cgroup v1, an image of kind's says that it is up before systemd is.
const (
	// restartContainerd lets containerd read its new configuration, unless it has not
	// begun yet.
	restartContainerd = "! pgrep -x containerd >/dev/null || systemctl restart containerd.service; "
	awaitContainerd   = "timeout 60 sh -c 'until [ -S /run/containerd/containerd.sock ] && ctr version >/dev/null 2>&1; do sleep 0.1; done'"
)

// containerdConfig is containerd's configuration with the description's patches, and
// with a directory of registries where there are any to be told.
func containerdConfig(text string, s config.Settings, registries bool) (string, error) {
	if registries {
		// Images of kindest/node before 0.27 say none, and none is the default.
		dir, err := configPath(text)
		if err != nil {
			return "", err
		}
		if dir == "" {
			if text, err = patch.TOML(text, registryPatches(), nil); err != nil {
				return "", err
			}
		}
	}
	if len(s.ContainerdConfigPatches)+len(s.ContainerdConfigPatchesJSON6902) == 0 {
		return text, nil
	}
	return patch.TOML(text, s.ContainerdConfigPatches, s.ContainerdConfigPatchesJSON6902)
}

// registryPatches say where registries are, in the words of each version of the file.
func registryPatches() []string {
	dir := containerdRuntime().registriesDir
	return []string{
		fmt.Sprintf("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = '%s'\n", dir),
		fmt.Sprintf("version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '%s'\n", dir),
	}
}

// criConfig is what is read of containerd's configuration, of version 2 or 3.
type criConfig struct {
	Plugins struct {
		Two struct {
			Registry struct {
				ConfigPath string `toml:"config_path"`
			}
			Containerd struct{ Snapshotter string }
		} `toml:"io.containerd.grpc.v1.cri"`
		Three struct {
			Registry struct {
				ConfigPath string `toml:"config_path"`
			}
			Snapshotter string
		} `toml:"io.containerd.cri.v1.images"`
	}
}

func readCRIConfig(text string) (criConfig, error) {
	var read criConfig
	if err := toml.Unmarshal([]byte(text), &read); err != nil {
		return read, fmt.Errorf("cannot read containerd's configuration: %w: %w", errs.Invalid, err)
	}
	return read, nil
}

// configPath is where containerd looks for registries; "" where it is not told.
func configPath(text string) (string, error) {
	read, err := readCRIConfig(text)
	return cmp.Or(read.Plugins.Two.Registry.ConfigPath, read.Plugins.Three.Registry.ConfigPath), err
}

// snapshotter is the one that containerd unpacks images of pods with.
func (c *Clusters) snapshotter(ctx context.Context, node string) (string, error) {
	text, err := provider.Output(ctx, c.Provider, node, "containerd", "config", "dump")
	if err != nil {
		return "", err
	}
	read, err := readCRIConfig(text)
	return cmp.Or(read.Plugins.Three.Snapshotter, read.Plugins.Two.Containerd.Snapshotter, "overlayfs"), err
}
