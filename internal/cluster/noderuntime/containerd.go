package noderuntime

import (
	"cmp"
	"context"
	"fmt"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/patch"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/registries"
)

// ContainerdFile is the configuration of containerd in a node of kindest/node.
const ContainerdFile = "/etc/containerd/config.toml"

// ConfigureContainerd writes registries and the patches of a cluster file into the configuration of
// a node's containerd, and waits until containerd answers.
func ConfigureContainerd(ctx context.Context, p provider.Provider, node string, s config.Settings, all []registries.Registry) error {
	files, err := HostsFiles(Containerd().RegistriesDir, all)
	if err != nil {
		return err
	}
	before, err := provider.Output(ctx, p, node, "cat", ContainerdFile)
	if err != nil {
		return fmt.Errorf("cannot read containerd's configuration: %w", err)
	}
	now, err := ContainerdConfig(before, s, len(files) > 0)
	if err != nil {
		return err
	}
	script := awaitContainerd
	if now != before {
		files = append(files, provider.File{Path: ContainerdFile, Content: []byte(now)})
		script = restartContainerd + script
	}
	if err := p.Exec(ctx, node, provider.Command{Files: files, Args: []string{"sh", "-c", script}}); err != nil {
		return fmt.Errorf("containerd does not answer: %w", err)
	}
	return nil
}

// On a host with cgroup v1, kind's image reports ready before systemd is up.
const (
	// restartContainerd lets containerd read its new configuration, unless it has not started yet.
	restartContainerd = "! pgrep -x containerd >/dev/null || systemctl restart containerd.service; "
	awaitContainerd   = "timeout 60 sh -c 'until [ -S /run/containerd/containerd.sock ] && ctr version >/dev/null 2>&1; do sleep 0.1; done'"
)

// ContainerdConfig returns containerd's configuration with the patches of the cluster file. If
// there are registries, it has the directory that containerd reads them from. The error is
// errs.Invalid when text cannot be parsed.
func ContainerdConfig(text string, s config.Settings, registries bool) (string, error) {
	if registries {
		// Images of kindest/node before 0.27 set no directory, and there is no default.
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

// registryPatches set the registry directory, for each version of the file.
func registryPatches() []string {
	dir := Containerd().RegistriesDir
	return []string{
		fmt.Sprintf("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = '%s'\n", dir),
		fmt.Sprintf("version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '%s'\n", dir),
	}
}

// criConfig has the fields that are read of containerd's configuration, version 2 or 3.
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

// configPath is where containerd looks for registries; "" where it has none.
func configPath(text string) (string, error) {
	read, err := readCRIConfig(text)
	return cmp.Or(read.Plugins.Two.Registry.ConfigPath, read.Plugins.Three.Registry.ConfigPath), err
}

// Snapshotter returns the snapshotter that a node's containerd unpacks images of pods with.
func Snapshotter(ctx context.Context, p provider.Provider, node string) (string, error) {
	text, err := provider.Output(ctx, p, node, "containerd", "config", "dump")
	if err != nil {
		return "", err
	}
	read, err := readCRIConfig(text)
	return cmp.Or(read.Plugins.Three.Snapshotter, read.Plugins.Two.Containerd.Snapshotter, "overlayfs"), err
}
