package ociruntime

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/hooks"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Plan is what Create will make of a spec. Nothing is created yet. A Plan has all that the undo of
// the creation needs.
type Plan struct {
	ID       string
	Terminal bool
	// Cgroups are where the container will live.
	Cgroups cgroup.Paths
	// UID and GID are the host's ids of the user that the program runs as. It owns the pipes.
	UID, GID int
	// Starter is the name of what creates the container, and Reason why it is not berth's own
	// init, for people. Create may change both.
	Starter, Reason string
	// Spec is the spec as the host allows it. Systemd selects the cgroup driver of systemd.
	Spec    *specs.Spec
	Systemd bool
	// Hooks are what the caller runs once the container is created, nil when the runtime runs them, or there
	// are none.
	Hooks *hooks.Kept
	// Restore is what the container continues, nil for the program of the spec.
	Restore *Restore
	// Sandbox is what the shim makes a sandbox of, nil for a container.
	Sandbox *Sandbox

	// payload is what the starter has computed for create.
	payload any
}

// PlanRequest is what Plan needs beside the spec.
type PlanRequest struct {
	ID, Bundle string
	// Systemd selects the cgroup driver of systemd.
	Systemd bool
	// NoOwnInit has libcontainer create the container.
	NoOwnInit bool
	// Timeout bounds each hook: hooks run outside of the container's cgroup, where Create cannot
	// kill them.
	Timeout time.Duration
	// Restore is what the container continues, nil for the program of the spec.
	Restore *Restore
	// Sandbox is what a shim makes a sandbox of, nil for a container.
	Sandbox *Sandbox
}

// Restore are the processes of a checkpoint that a container continues in the place of a program.
type Restore struct {
	// Images is a directory with the image files of CRIU, Work one for its log, CRIU the path of the program.
	Images, Work, CRIU string
}

// Sandbox is what a shim with the sandbox API makes a sandbox of.
type Sandbox struct {
	// Config is the sandbox's configuration, a message of the type ConfigType.
	Config     []byte
	ConfigType string
	// NetNS is the path of the network namespace, "" for the host's.
	NetNS string
}

// Plan checks the spec and computes what Create will do. It changes spec where the host does not
// allow what the spec requests (see Host.Fit).
func (r *Runtime) Plan(spec *specs.Spec, request *PlanRequest) (*Plan, error) {
	if err := checkSpec(request.ID, request.Bundle, spec, request.Systemd); err != nil {
		return nil, fmt.Errorf("cannot use the spec of container %s: %w", request.ID, err)
	}
	r.host.Fit(spec)
	boundHooks(spec.Hooks, int((request.Timeout+time.Second-1)/time.Second))
	p := &Plan{ID: request.ID, Terminal: spec.Process.Terminal, Spec: spec, Systemd: request.Systemd, Restore: request.Restore, Sandbox: request.Sandbox}
	if err := r.starter.plan(p, spec, request); err != nil {
		return nil, err
	}
	return p, p.Cgroups.Check(request.ID)
}

// checkSpec refuses a spec without the fields that Create needs, and one with paths relative to the
// current directory, which all containers share in this process.
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

func boundHooks(all *specs.Hooks, seconds int) {
	if all == nil {
		return
	}
	for _, list := range [][]specs.Hook{
		all.Prestart, //nolint:staticcheck // older tools still use it
		all.CreateRuntime, all.CreateContainer, all.StartContainer, all.Poststart, all.Poststop,
	} {
		for i := range list {
			if list[i].Timeout == nil || *list[i].Timeout <= 0 || *list[i].Timeout > seconds {
				list[i].Timeout = &seconds
			}
		}
	}
}
