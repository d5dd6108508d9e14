package ociruntime

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Plan is all that will be made of a spec, with nothing made yet: what undoing
// needs to know is known before the first step.
type Plan struct {
	ID       string
	Terminal bool
	// Cgroups are where the container will live.
	Cgroups cgroup.Paths
	// UID and GID are the host's numbers of the user that the program runs as,
	// to own its pipes.
	UID, GID int

	config  *configs.Config
	process *libcontainer.Process
}

// Plan checks the spec and computes what Create will do. It changes spec where
// the host forbids what it asks for (see Host.Fit), and lets no hook take longer
// than timeout: hooks run outside of the container's cgroup, out of reach.
func (r *Runtime) Plan(id, bundle string, spec *specs.Spec, systemd bool, timeout time.Duration) (*Plan, error) {
	if err := checkSpec(id, bundle, spec, systemd); err != nil {
		return nil, fmt.Errorf("cannot use the spec of container %s: %w", id, err)
	}
	r.host.Fit(spec)
	boundHooks(spec.Hooks, int((timeout+time.Second-1)/time.Second))
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName:       id,
		UseSystemdCgroup: systemd,
		Spec:             spec,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot use the spec of container %s: %w", id, withCause(fmt.Errorf("%w: %w", err, errs.Invalid), ""))
	}
	setBundle(config, bundle)
	process, err := newProcess(spec.Process)
	if err != nil {
		return nil, fmt.Errorf("cannot use the process of container %s: %w", id, err)
	}
	process.Init = true
	p := &Plan{ID: id, Terminal: spec.Process.Terminal, config: config, process: process}
	if p.UID, err = config.HostUID(process.UID); err != nil {
		return nil, fmt.Errorf("cannot use the user of container %s: %w: %w", id, err, errs.Invalid)
	}
	if p.GID, err = config.HostGID(process.GID); err != nil {
		return nil, fmt.Errorf("cannot use the group of container %s: %w: %w", id, err, errs.Invalid)
	}
	cm, err := manager.New(config.Cgroups)
	if err != nil {
		return nil, fmt.Errorf("cannot use the cgroup of container %s: %w: %w", id, err, errs.Invalid)
	}
	p.Cgroups = cm.GetPaths()
	return p, p.Cgroups.Check(id)
}

// checkSpec demands what a runc user gets from the command line: paths that do
// not depend on the current directory, which all containers here share.
func checkSpec(id, bundle string, spec *specs.Spec, systemd bool) error {
	switch {
	case spec.Process == nil || len(spec.Process.Args) == 0:
		return fmt.Errorf("process.args is empty: %w", errs.Invalid)
	case spec.Root == nil || spec.Root.Path == "":
		return fmt.Errorf("root.path is empty: %w", errs.Invalid)
	case spec.Linux == nil || spec.Linux.CgroupsPath == "":
		return fmt.Errorf("linux.cgroupsPath is empty: %w", errs.Invalid)
	case !systemd && !filepath.IsAbs(spec.Linux.CgroupsPath):
		return fmt.Errorf("linux.cgroupsPath %q is relative: %w", spec.Linux.CgroupsPath, errs.Invalid)
	case systemd && strings.Count(spec.Linux.CgroupsPath, ":") != 2:
		return fmt.Errorf("linux.cgroupsPath %q is not slice:prefix:name: %w", spec.Linux.CgroupsPath, errs.Invalid)
	case !strings.HasSuffix(spec.Linux.CgroupsPath, id):
		return fmt.Errorf("linux.cgroupsPath %q does not end in the container's id: %w", spec.Linux.CgroupsPath, errs.Invalid)
	}
	if !filepath.IsAbs(spec.Root.Path) {
		spec.Root.Path = filepath.Join(bundle, spec.Root.Path)
	}
	for _, m := range spec.Mounts {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if bind && !filepath.IsAbs(m.Source) {
			return fmt.Errorf("source %q of mount %s is relative: %w", m.Source, m.Destination, errs.Invalid)
		}
	}
	return nil
}

func boundHooks(hooks *specs.Hooks, seconds int) {
	if hooks == nil {
		return
	}
	for _, list := range [][]specs.Hook{
		hooks.Prestart, //nolint:staticcheck // older tools still use it
		hooks.CreateRuntime, hooks.CreateContainer, hooks.StartContainer, hooks.Poststart, hooks.Poststop,
	} {
		for i := range list {
			if list[i].Timeout == nil || *list[i].Timeout <= 0 || *list[i].Timeout > seconds {
				list[i].Timeout = &seconds
			}
		}
	}
}

// setBundle puts right what specconv takes from the current directory; runc's
// list and state tell it.
func setBundle(config *configs.Config, bundle string) {
	for i, label := range config.Labels {
		if strings.HasPrefix(label, "bundle=") {
			config.Labels[i] = "bundle=" + bundle
		}
	}
}
