// Package convert translates between the types of CRI, of the OCI runtime specification and of
// NRI, and applies the adjustments of plugins to an OCI spec. It keeps no state.
package convert

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// Names finds what names in an adjustment stand for: see engine.Names.
type Names struct {
	CDI     func(names []string) error
	BlockIO func(class string) (*specs.LinuxBlockIO, error)
	RDT     func(class string) (*specs.LinuxIntelRdt, error)
}

// Adjust applies an adjustment that Check has accepted.
func Adjust(spec *specs.Spec, adjust *api.ContainerAdjustment, names Names) error {
	own := newGenerator(spec)
	// The specification allows each type once.
	spec.Process.Rlimits = slices.DeleteFunc(spec.Process.Rlimits, func(l specs.POSIXRlimit) bool {
		return slices.ContainsFunc(adjust.GetRlimits(), func(new *api.POSIXRlimit) bool { return new.GetType() == l.Type })
	})
	library := generate.SpecGenerator(own,
		generate.WithCDIDeviceInjector(func(_ *specs.Spec, devices []string) error { return names.CDI(devices) }),
		generate.WithBlockIOResolver(func(class string) (*specs.LinuxBlockIO, error) {
			return named(names.BlockIO, "linux.resources.blockio_class", class)
		}),
		generate.WithRdtResolver(func(class string) (*specs.LinuxIntelRdt, error) {
			return named(names.RDT, "linux.resources.rdt_class", class)
		}))
	if err := library.Adjust(adjust); err != nil {
		return err
	}
	adjustMemory(own, adjust.GetLinux().GetResources().GetMemory())
	if policy := adjust.GetLinux().GetSeccompPolicy(); policy.GetDefaultErrno() != nil {
		errno := uint(policy.GetDefaultErrno().GetValue())
		spec.Linux.Seccomp.DefaultErrnoRet = &errno
	}
	return nil
}

// named returns what a class is. field is that of the adjustment.
func named[T any](find func(class string) (T, error), field, class string) (found T, err error) {
	if found, err = find(class); err != nil {
		return found, fmt.Errorf("%s: %w", field, err)
	}
	return found, nil
}

// adjustMemory applies what the library leaves out. It has set the limit.
func adjustMemory(g *generator, m *api.LinuxMemory) {
	if m == nil {
		return
	}
	wanted := (&api.LinuxResources{Memory: m}).ToOCI().Memory
	to := g.memory()
	to.Reservation = cmp.Or(wanted.Reservation, to.Reservation)
	to.Swap = cmp.Or(wanted.Swap, to.Swap)
	to.Kernel = cmp.Or(wanted.Kernel, to.Kernel) //nolint:staticcheck // old, and part of NRI
	to.KernelTCP = cmp.Or(wanted.KernelTCP, to.KernelTCP)
	to.Swappiness = cmp.Or(wanted.Swappiness, to.Swappiness)
	to.DisableOOMKiller = cmp.Or(wanted.DisableOOMKiller, to.DisableOOMKiller)
	to.UseHierarchy = cmp.Or(wanted.UseHierarchy, to.UseHierarchy)
}

// Check refuses, as Invalid and with the field's name, an adjustment that has no meaning. The
// kernel and the OCI runtime check the rest.
func Check(adjust *api.ContainerAdjustment) error {
	var faults []error
	report := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format+": %w", append(args, errs.Invalid)...))
	}
	for i, m := range adjust.GetMounts() {
		if destination, removed := m.IsMarkedForRemoval(); !filepath.IsAbs(destination) {
			report("mounts[%d].destination: %q is not an absolute path", i, destination)
		} else if !removed && bindsRelative(m) {
			report("mounts[%d].source: %q is not an absolute path", i, m.GetSource())
		}
	}
	for i, env := range adjust.GetEnv() {
		name, _ := env.IsMarkedForRemoval()
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(env.GetValue(), "\x00") {
			report("env[%d]: %q cannot be an environment variable", i, name)
		}
	}
	for i, d := range adjust.GetLinux().GetDevices() {
		path, removed := d.IsMarkedForRemoval()
		if !filepath.IsAbs(path) {
			report("linux.devices[%d].path: %q is not an absolute path", i, path)
		} else if !removed && !slices.Contains([]string{"c", "b", "u", "p"}, d.GetType()) {
			report("linux.devices[%d].type: %q: want c, b, u or p", i, d.GetType())
		}
	}
	for i, l := range adjust.GetRlimits() {
		if !slices.Contains(rlimits(), l.GetType()) {
			report("rlimits[%d].type: unknown limit %q", i, l.GetType())
		} else if l.GetSoft() > l.GetHard() {
			report("rlimits[%d]: %s: the soft limit %d is above the hard one %d", i, l.GetType(), l.GetSoft(), l.GetHard())
		}
	}
	checkHooks(adjust.GetHooks(), report)
	if score := adjust.GetLinux().GetOomScoreAdj(); score != nil && (score.GetValue() < -1000 || score.GetValue() > 1000) {
		report("linux.oom_score_adj: %d: want -1000 to 1000", score.GetValue())
	}
	return errors.Join(faults...)
}

// bindsRelative reports whether a mount binds a path that is not absolute.
func bindsRelative(m *api.Mount) bool {
	bind := m.GetType() == "bind" || slices.Contains(m.GetOptions(), "bind") || slices.Contains(m.GetOptions(), "rbind")
	return bind && !filepath.IsAbs(m.GetSource())
}

func checkHooks(hooks *api.Hooks, report func(format string, args ...any)) {
	for _, stage := range []struct {
		name  string
		hooks []*api.Hook
	}{
		{"prestart", hooks.GetPrestart()},
		{"create_runtime", hooks.GetCreateRuntime()},
		{"create_container", hooks.GetCreateContainer()},
		{"start_container", hooks.GetStartContainer()},
		{"poststart", hooks.GetPoststart()},
		{"poststop", hooks.GetPoststop()},
	} {
		for i, hook := range stage.hooks {
			if !filepath.IsAbs(hook.GetPath()) {
				report("hooks.%s[%d].path: %q is not an absolute path", stage.name, i, hook.GetPath())
			}
		}
	}
}

// rlimits are the types of limits of the OCI runtime specification, as Linux has them.
func rlimits() []string {
	return []string{
		"RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_LOCKS", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE",
		"RLIMIT_NICE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_RSS", "RLIMIT_RTPRIO", "RLIMIT_RTTIME", "RLIMIT_SIGPENDING", "RLIMIT_STACK",
	}
}
