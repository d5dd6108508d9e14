package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/cluster/provider/hostcheck"
	"github.com/berthrun/berth/internal/errs"
)

// readFacts fills in the facts.
func (e *CLI) readFacts(ctx context.Context) error {
	// If its daemon does not answer, docker's tool writes its JSON and ends with an error; older
	// ones end without one.
	out, failed := command.Output(ctx, e.run, e.info...)
	err := e.readInfo(out, &e.facts)
	if failed != nil && !errors.Is(err, errs.Unavailable) {
		err = failed
	}
	if err != nil {
		return err
	}
	if err := e.recentDaemon(out); err != nil {
		return err
	}
	e.facts.Loopback6 = e.loopback6 || e.facts.Rootless
	if e.name == "podman" && e.version.LessThan(version.MustParseGeneric("4.0.0")) {
		// It does not report yet which controllers there are.
		e.facts.Memory, e.facts.Pids, e.facts.CPU = true, true, true
	}
	if e.dockerConfig {
		e.daemon = e.dockerHost(ctx)
		e.facts.Remote = e.daemon != "" && !strings.HasPrefix(e.daemon, "unix:") && !strings.HasPrefix(e.daemon, "npipe:")
	}
	return nil
}

// recentDaemon refuses a daemon that is too old. A version that cannot be read is a custom build,
// and is allowed.
func (e *CLI) recentDaemon(info []byte) error {
	if e.oldestDaemon == "" {
		return nil
	}
	var said struct{ ServerVersion string }
	if json.Unmarshal(info, &said) != nil {
		return nil
	}
	is, err := version.ParseGeneric(said.ServerVersion)
	if err != nil || !is.LessThan(version.MustParseGeneric(e.oldestDaemon)) {
		return nil
	}
	return fmt.Errorf("%s version %q is too old, please upgrade to %q or later: %w", e.daemonName, is, e.oldestDaemon, errs.Unsupported)
}

// podmanInfo reads `podman info --format json`.
func podmanInfo(text []byte, f *Facts) error {
	var info struct {
		Host struct {
			CgroupVersion     string   `json:"cgroupVersion"`
			CgroupControllers []string `json:"cgroupControllers"`
			ServiceIsRemote   bool     `json:"serviceIsRemote"`
			NetworkBackend    string   `json:"networkBackend"` // from 4.0 on
			Rootless          bool     `json:"rootless"`       // before 3.0
			Security          struct {
				Rootless bool `json:"rootless"`
			} `json:"security"`
		} `json:"host"`
		Store struct {
			GraphDriverName string         `json:"graphDriverName"`
			GraphRoot       string         `json:"graphRoot"`
			GraphStatus     map[string]any `json:"graphStatus"`
		} `json:"store"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return fmt.Errorf("podman info is not JSON: %w", err)
	}
	has := func(name string) bool { return slices.Contains(info.Host.CgroupControllers, name) }
	f.Rootless = info.Host.Rootless || info.Host.Security.Rootless
	f.Remote = info.Host.ServiceIsRemote
	f.CgroupV2 = info.Host.CgroupVersion == "v2"
	// Networks that older podmans created for CNI refuse a chosen one.
	f.ChosenLinks = info.Host.NetworkBackend == "netavark"
	f.Memory, f.Pids, f.CPU = has("memory"), has("pids"), has("cpu")
	f.Driver, f.Root = info.Store.GraphDriverName, info.Store.GraphRoot
	f.Filesystem, _ = info.Store.GraphStatus["Backing Filesystem"].(string)
	return nil
}

// dockerInfo reads `docker info --format '{{json .}}'`, which nerdctl has, too.
func dockerInfo(text []byte, f *Facts) error {
	var info struct {
		Driver          string
		DockerRootDir   string
		DriverStatus    [][]string
		CgroupDriver    string
		CgroupVersion   string
		MemoryLimit     bool
		PidsLimit       bool
		CPUShares       bool
		SecurityOptions []string
		ServerErrors    []string
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return fmt.Errorf("docker info is not JSON: %w", err)
	}
	if len(info.ServerErrors) > 0 {
		return fmt.Errorf("%s: %w", strings.Join(info.ServerErrors, "; "), errs.Unavailable)
	}
	f.CgroupV2 = info.CgroupVersion == "2"
	if info.CgroupDriver != "none" {
		// Its limits mean nothing if it has no cgroups at all.
		f.Memory, f.Pids, f.CPU = info.MemoryLimit, info.PidsLimit, info.CPUShares
	}
	for _, option := range info.SecurityOptions {
		// As in "name=seccomp,profile=default".
		for field := range strings.SplitSeq(option, ",") {
			f.Rootless = f.Rootless || field == "name=rootless"
			f.UserRemap = f.UserRemap || field == "name=userns"
		}
	}
	f.Driver, f.Root = info.Driver, info.DockerRootDir
	for _, pair := range info.DriverStatus {
		if len(pair) == 2 && pair[0] == "Backing Filesystem" {
			f.Filesystem = pair[1]
		}
	}
	return nil
}

// mapped reports whether the kubelet looks for the devices of its filesystems in /dev/mapper.
func (f Facts) mapped() bool {
	on := []string{"btrfs", "zfs", "xfs"}
	return slices.Contains([]string{"btrfs", "zfs", "devicemapper"}, strings.ToLower(f.Driver)) || slices.Contains(on, strings.ToLower(f.Filesystem))
}

// Check tells what the engine demands of itself, and hostcheck what of this host where
// the nodes run on it.
func (e *CLI) Check(nodes int) []hostcheck.UnmetRequirement {
	found := e.demands()
	if !e.facts.Remote {
		host := hostcheck.Host{Root: e.host, Rootless: e.facts.Rootless, Home: e.env["HOME"]}
		found = append(found, hostcheck.Check(host, nodes)...)
		if e.rebooted != "" {
			found = append(found, host.Reboot(e.rebooted, "enable")...)
		}
	}
	slices.SortStableFunc(found, func(a, b hostcheck.UnmetRequirement) int {
		switch {
		case a.Fatal() == b.Fatal():
			return 0
		case a.Fatal():
			return -1
		}
		return 1
	})
	return found
}

// demands are those of a rootless engine, and what is odd about the others.
func (e *CLI) demands() []hostcheck.UnmetRequirement {
	f := e.facts
	switch {
	case f.Rootless && !f.CgroupV2:
		return []hostcheck.UnmetRequirement{hostcheck.Problem("running nodes with rootless provider requires cgroup v2, and this host has cgroup v1",
			"sudo grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1   # or GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub\nsudo reboot")}
	case f.Rootless && (!f.Memory || !f.Pids || !f.CPU):
		return []hostcheck.UnmetRequirement{hostcheck.Problem(`running nodes with rootless provider requires setting systemd property "Delegate=yes": limits of memory, pids or cpu are not this user's`,
			"sudo mkdir -p /etc/systemd/system/user@.service.d\n"+
				`printf '[Service]\nDelegate=yes\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf`+
				"\nsudo systemctl daemon-reload   # then log out and in again")}
	case !f.CgroupV2 && !f.Rootless:
		return []hostcheck.UnmetRequirement{hostcheck.ClassicCgroups()}
	}
	return nil
}
