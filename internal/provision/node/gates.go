package node

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/health"
	"github.com/berthrun/berth/internal/provision/kubelet"
)

// gates guards the runtime's restart.
func (b *builder) gates() {
	gate := provision.Gate{Unit: b.rt.unit}
	if check := b.validator(); check != nil {
		gate.Before = append(gate.Before, configProbe{file: b.rt.config, args: check})
	}
	driver, parent := "cgroupfs", ""
	if b.systemdCgroup() {
		driver, parent = "systemd", "system.slice"
	}
	if b.rt.socket != "" && !b.n.Kubelet.Enabled {
		gate.Before = append(gate.Before, kubeletProbe{
			runtime: b.rt.name, driver: driver, endpoint: "unix://" + b.rt.socket, moves: len(b.f.Replaced) > 0,
		})
	}
	if b.n.Network.Mode == "kubenet" {
		gate.Before = append(gate.Before, pluginProbe{dirs: b.cniBinDirs(), plugins: []string{"ptp", "host-local", "portmap", "loopback"}})
	}
	if b.rt.socket != "" {
		gate.After = append(gate.After, health.CRI{
			Endpoint: "unix://" + b.rt.socket, Unit: b.rt.unit, SandboxImage: b.testImage(), CgroupParent: parent,
		})
	} else {
		gate.After = append(gate.After, health.Docker{Socket: "/run/docker.sock", Unit: b.rt.unit})
	}
	b.target.Gates = append(b.target.Gates, gate)
}

// testImage is the image that a sandbox of the runtime needs; empty for none. A
// wrong guess costs the test and nothing else.
func (b *builder) testImage() string {
	if b.n.Runtime.SandboxImage != "" || b.rt.name != "containerd" {
		return b.n.Runtime.SandboxImage
	}
	for _, until := range []struct {
		major, minor int
		tag          string
	}{{1, 7, "3.6"}, {2, 0, "3.8"}, {2, 2, "3.10"}, {2, 3, "3.10.1"}} {
		if b.rt.version.Less(until.major, until.minor) && !b.rt.version.IsZero() {
			return "registry.k8s.io/pause:" + until.tag
		}
	}
	return "registry.k8s.io/pause:3.10.2"
}

// validator is the program that judges the runtime's configuration; nil where its
// version has none.
func (b *builder) validator() []string {
	binary := b.rt.binary
	if !b.rt.packaged {
		binary = path.Join(b.f.Distro.BinDir, binary)
	}
	switch b.rt.name {
	case "berth":
		return []string{binary, "config", "check", b.rt.config}
	case "containerd":
		return []string{binary, "--config", b.rt.config, "config", "dump"}
	case "docker":
		if v := b.rt.version; !v.IsZero() && !v.Less(23, 0) {
			return []string{binary, "--validate", "--config-file", b.rt.config}
		}
	}
	return nil
}

// configProbe lets the installed binary read the configuration.
type configProbe struct {
	file string
	args []string
}

func (p configProbe) Name() string {
	return p.file + " is read by the installed " + path.Base(p.args[0])
}

func (p configProbe) Run(ctx context.Context, host provision.Host) error {
	if !host.Live() {
		return nil // its binary may not run here
	}
	if _, err := host.Run(ctx, provision.Command{Args: p.args}); err != nil {
		return fmt.Errorf("%s: %w", p.file, err)
	}
	return nil
}

// kubeletProbe compares a kubelet that is somebody else's with the runtime: two
// cgroup drivers kill pods, and a kubelet that talks to another socket never starts
// any.
type kubeletProbe struct {
	runtime, driver, endpoint string
	// moves is set when the kubelet is pointed at the runtime later in the same apply.
	moves bool
}

func (p kubeletProbe) Name() string { return "the kubelet's cgroup driver and runtime endpoint" }

func (p kubeletProbe) Run(_ context.Context, host provision.Host) error {
	k, err := kubelet.Find(host)
	if err != nil || !k.There() {
		return err
	}
	if k.Driver.Text != "" && k.Driver.Text != p.driver {
		return fmt.Errorf("misconfiguration: kubelet cgroup driver: %q is different from %s cgroup driver: %q (%s): %w",
			k.Driver.Text, p.runtime, p.driver, k.Driver.From, errs.State)
	}
	if endpoint := k.Endpoint; endpoint.Text != "" && !p.moves && socketOf(endpoint.Text) != socketOf(p.endpoint) {
		return fmt.Errorf("the kubelet talks to %s and %s listens on %s; change %s: %w", endpoint.Text, p.runtime, p.endpoint, endpoint.From, errs.State)
	}
	return nil
}

// socketOf is the path of an endpoint, whichever way it is written.
func socketOf(endpoint string) string {
	return strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix://"), "/var")
}

// pluginProbe looks for CNI plugins.
type pluginProbe struct {
	dirs, plugins []string
}

func (p pluginProbe) Name() string { return "CNI plugins " + strings.Join(p.plugins, ", ") }

func (p pluginProbe) Run(_ context.Context, host provision.Host) error {
	for _, plugin := range p.plugins {
		var places []string
		for _, dir := range p.dirs {
			places = append(places, path.Join(dir, plugin))
		}
		if !isThere(host.Files(), places...) {
			return fmt.Errorf("CNI plugin %s is in none of %s: %w", plugin, strings.Join(p.dirs, ", "), errs.NotFound)
		}
	}
	return nil
}
