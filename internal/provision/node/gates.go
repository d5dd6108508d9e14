package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/cniconf"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/health"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// gates returns the checks around the runtime's restart.
func (b *builder) gates() {
	gate := provision.Gate{Unit: b.rt.unit}
	gate.Before = append(gate.Before, configProbe{file: b.rt.config, args: b.validator()})
	if b.rt.name == "docker" {
		gate.Before = append(gate.Before, watchProbe{})
		gate.After = append(gate.After, health.Docker{Socket: handover.DockerSocket, Unit: b.rt.unit})
	}
	if b.n.BerthOverDocker() {
		b.target.Gates = append(b.target.Gates, gate)
		gate = provision.Gate{Unit: b.rt.criUnit}
		gate.Before = append(gate.Before, configProbe{file: berthConfigFile, args: []string{b.berthBinary(), "config", "check", berthConfigFile}})
	}
	if b.rt.socket != "" {
		b.criGate(&gate)
	}
	b.target.Gates = append(b.target.Gates, gate)
}

// criGate adds the checks around the restart of the unit that serves CRI.
func (b *builder) criGate(gate *provision.Gate) {
	driver, parent := "cgroupfs", ""
	if b.systemdCgroup() {
		driver, parent = "systemd", "system.slice"
	}
	if !b.n.Kubelet.Enabled {
		gate.Before = append(gate.Before, kubeletProbe{
			runtime: b.rt.name, driver: driver, endpoint: "unix://" + b.rt.socket, moves: len(b.f.Replaced) > 0,
		})
	}
	gate.Before = append(gate.Before, watchProbe{})
	network := health.PodNetwork
	switch b.n.Network.Mode {
	case "kubenet":
		gate.Before = append(gate.Before, pluginProbe{dirs: b.cniDirs, plugins: []string{"ptp", "host-local", "portmap", "loopback"}})
		if b.kubenetTemplate() { // the kubelet passes the pods' CIDRs
			network = health.ClusterNetwork
		}
	case "cni":
		network = health.ClusterNetwork
		gate.Before = append(gate.Before, networkProbe{unit: gate.Unit, conf: b.n.Network.ConfDir, dirs: b.cniDirs})
	}
	if image := b.n.Runtime.SandboxImage; image != "" && !b.loads(image) {
		gate.Before = append(gate.Before, imageProbe{endpoint: "unix://" + b.rt.socket, image: image})
	}
	gate.After = append(gate.After, health.CRI{
		Endpoint: "unix://" + b.rt.socket, Unit: gate.Unit, SandboxImage: b.testImage(), Network: network, CgroupParent: parent,
	})
}

// testImage is the image that a sandbox of the runtime needs; empty for none. If the guess is
// wrong, only the test is lost.
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

// loads reports whether the description brings an image.
func (b *builder) loads(image string) bool {
	return slices.ContainsFunc(b.imagesOfArch(), func(i nodefile.Image) bool { return slices.Contains(i.Names, image) })
}

// validator is the program that judges the runtime's configuration.
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
	case "crio": // it reads its drop-ins by itself
		return []string{binary, "config"}
	default:
		return []string{binary, "--validate", "--config-file", b.rt.config}
	}
}

// configProbe lets the installed binary check the configuration. If an old binary cannot (dockerd
// before 23), the restart shows it.
type configProbe struct {
	file string
	args []string
}

func (p configProbe) Name() string {
	return p.file + " is read by the installed " + path.Base(p.args[0])
}

func (p configProbe) Run(ctx context.Context, host provision.Host) error {
	if !host.Live() {
		return nil // the binary may not run here
	}
	_, err := host.Run(ctx, provision.Command{Args: p.args})
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "unknown flag") || strings.Contains(err.Error(), "flag provided but not defined"):
		provision.Warn(ctx, "it is too old to judge its configuration before it restarts")
		return nil
	}
	return fmt.Errorf("%s is refused by the installed %s: %w", p.file, path.Base(p.args[0]), err)
}

// leastWatchers is how many inotify instances a runtime needs: for CNI configurations, CDI
// specifications and its own files.
const leastWatchers = 4

// watchProbe checks that the runtime can watch files. A containerd that cannot runs without CRI,
// and says so only in its log.
type watchProbe struct{}

func (watchProbe) Name() string { return "watchers of files" }

func (watchProbe) Run(_ context.Context, host provision.Host) error {
	if !host.Live() {
		return nil
	}
	spare, err := host.Kernel().Inotify(leastWatchers)
	if err != nil || spare >= leastWatchers {
		return err
	}
	return fmt.Errorf("%d more can be made, and the runtime needs some to see its network: all containers of this host share what "+
		"fs.inotify.max_user_instances allows; raise it (kernel.sysctls), or end programs that use them (berth node doctor names them): %w", spare, errs.Exhausted)
}

// imageProbe checks for the sandbox image while the runtime still runs: without it no pod would
// start after the restart.
type imageProbe struct{ endpoint, image string }

func (p imageProbe) Name() string { return "sandbox image " + p.image }

func (p imageProbe) Run(ctx context.Context, host provision.Host) error {
	if !host.Live() || !provision.Exists(host.Files(), strings.TrimPrefix(p.endpoint, "unix://")) {
		return nil // no runtime to ask
	}
	err := crisock.EnsureImage(ctx, p.endpoint, p.image)
	if errors.Is(err, errs.Unavailable) {
		return nil // a restart cannot harm a runtime that does not answer
	}
	return err
}

// networkProbe checks for the plugins of a network that somebody else configures: the restart must
// not cost a running runtime its network.
type networkProbe struct {
	unit, conf string
	dirs       []string
}

func (p networkProbe) Name() string { return "CNI plugins of the network in " + p.conf }

func (p networkProbe) Run(ctx context.Context, host provision.Host) error {
	config, err := cniconf.First(host.Files(), p.conf)
	if err == nil {
		if missing := config.Missing(host.Files(), p.dirs); len(missing) > 0 {
			err = fmt.Errorf("%s wants the CNI plugins %s, which are in none of %s; install them, or say network.binDir: %w",
				config.File, strings.Join(missing, ", "), strings.Join(p.dirs, ", "), errs.NotFound)
		}
	}
	if err == nil || !host.Live() {
		return nil
	}
	if state, stateErr := host.Units().State(ctx, p.unit); stateErr == nil && state.Active == "active" {
		return err
	}
	provision.Warn(ctx, "%v", err)
	return nil
}

// kubeletProbe compares a kubelet that berth does not manage with the runtime: two cgroup drivers
// kill pods, and a kubelet that talks to another socket starts no pod on the runtime.
type kubeletProbe struct {
	runtime, driver, endpoint string
	// moves is set if the same apply later points the kubelet at the runtime.
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
	endpoint := k.Endpoint
	if k.Silent(host.Files()) {
		endpoint = kubelet.Value{Text: kubelet.DefaultEndpoint, From: "containerRuntimeEndpoint in " + cmp.Or(k.Config, k.Source) + ", which does not name it"}
	}
	if endpoint.Text != "" && !p.moves && crisock.Path(endpoint.Text) != crisock.Path(p.endpoint) {
		return fmt.Errorf("the kubelet talks to %s and %s listens on %s; change %s: %w", endpoint.Text, p.runtime, p.endpoint, endpoint.From, errs.State)
	}
	return nil
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
		if !provision.Exists(host.Files(), places...) {
			return fmt.Errorf("CNI plugin %s is in none of %s: %w", plugin, strings.Join(p.dirs, ", "), errs.NotFound)
		}
	}
	return nil
}
