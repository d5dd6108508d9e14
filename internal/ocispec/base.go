package ocispec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// ParseBase reads an OCI spec on which those of containers are based, and leaves out what requests and berth decide:
// the program with its user, rights and confinement, the root filesystem, names, and all namespaces but that of the
// time. Kind Invalid.
func ParseBase(data []byte) (*specs.Spec, error) {
	base := &specs.Spec{}
	if err := json.Unmarshal(data, base); err != nil {
		return nil, fmt.Errorf("it is not an OCI spec: %w: %w", err, errs.Invalid)
	}
	base.Version, base.Root, base.Hostname, base.Domainname = "", nil, "", ""
	if p := base.Process; p != nil {
		base.Process = &specs.Process{
			Env: p.Env, Rlimits: p.Rlimits, Capabilities: p.Capabilities,
			Scheduler: p.Scheduler, IOPriority: p.IOPriority, ExecCPUAffinity: p.ExecCPUAffinity,
		}
	}
	if l := base.Linux; l != nil {
		l.CgroupsPath, l.Seccomp, l.MountLabel = "", nil, ""
		l.MaskedPaths, l.ReadonlyPaths, l.UIDMappings, l.GIDMappings = nil, nil, nil, nil
		l.RootfsPropagation = ""
		l.Namespaces = slices.DeleteFunc(l.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type != specs.TimeNamespace })
	}
	return base, checkBase(base)
}

func checkBase(base *specs.Spec) error {
	for i, m := range base.Mounts {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		switch {
		case !strings.HasPrefix(m.Destination, "/"):
			return fmt.Errorf("mounts[%d].destination: %q is not an absolute path: %w", i, m.Destination, errs.Invalid)
		case bind && !strings.HasPrefix(m.Source, "/"):
			return fmt.Errorf("mounts[%d].source: %q is not an absolute path: %w", i, m.Source, errs.Invalid)
		}
	}
	if base.Process != nil {
		for i, entry := range base.Process.Env {
			if strings.IndexByte(entry, '=') < 1 {
				return fmt.Errorf("process.env[%d]: %q: want NAME=VALUE: %w", i, entry, errs.Invalid)
			}
		}
	}
	return nil
}

// BaseCapabilities returns the capabilities that requests add to and drop from in containers of a base, nil when
// the base has none.
func BaseCapabilities(base *specs.Spec) []string {
	if base == nil || base.Process == nil || base.Process.Capabilities == nil {
		return nil
	}
	return append([]string{}, base.Process.Capabilities.Bounding...)
}

// OnBase adds to a container's spec what a base of ParseBase has and the spec does not. In lists, an entry of the spec
// hides that of the base with the same destination, path or name; limits of processes are the base's. Neither is
// changed otherwise, and they may share values afterwards.
func OnBase(spec, base *specs.Spec) {
	mounts, hooks := spec.Mounts, spec.Hooks
	env, rlimits := spec.Process.Env, spec.Process.Rlimits
	devices, rules := spec.Linux.Devices, spec.Linux.Resources.Devices
	capabilities := spec.Process.Capabilities

	fill(reflect.ValueOf(spec).Elem(), reflect.ValueOf(base).Elem())

	spec.Mounts, spec.Hooks = mountsOn(mounts, base.Mounts), hooksOn(hooks, base.Hooks)
	spec.Process.Capabilities = capabilities
	if p := base.Process; p != nil {
		spec.Process.Env = with(env, p.Env, func(entry string) string { name, _, _ := strings.Cut(entry, "="); return name })
		spec.Process.Rlimits = with(p.Rlimits, rlimits, func(l specs.POSIXRlimit) string { return l.Type })
	}
	if l := base.Linux; l != nil {
		spec.Linux.Devices = with(devices, l.Devices, func(d specs.LinuxDevice) string { return d.Path })
		spec.Linux.Namespaces = with(spec.Linux.Namespaces, l.Namespaces, func(ns specs.LinuxNamespace) string { return string(ns.Type) })
		if l.Resources != nil {
			spec.Linux.Resources.Devices = rulesOn(rules, l.Resources.Devices)
		}
	}
}

// runMount is the destination of a tmpfs that containerd's own base has, and no container of Kubernetes'.
const runMount = "/run"

// mountsOn adds the mounts of a base. They come first: a mount of the request may be below one of them.
func mountsOn(own, base []specs.Mount) []specs.Mount {
	var added []specs.Mount
	for _, m := range base {
		taken := slices.ContainsFunc(own, func(o specs.Mount) bool { return o.Destination == m.Destination })
		if !taken && (m.Destination != runMount || m.Type != "tmpfs") {
			added = append(added, m)
		}
	}
	return slices.Concat(added, own)
}

// hooksOn puts the hooks of a base before the others.
func hooksOn(own, base *specs.Hooks) *specs.Hooks {
	if base == nil {
		return own
	}
	if own == nil {
		own = &specs.Hooks{}
	}
	return &specs.Hooks{
		Prestart:        slices.Concat(base.Prestart, own.Prestart), //nolint:staticcheck // old, and part of the spec
		CreateRuntime:   slices.Concat(base.CreateRuntime, own.CreateRuntime),
		CreateContainer: slices.Concat(base.CreateContainer, own.CreateContainer),
		StartContainer:  slices.Concat(base.StartContainer, own.StartContainer),
		Poststart:       slices.Concat(base.Poststart, own.Poststart),
		Poststop:        slices.Concat(base.Poststop, own.Poststop),
	}
}

// rulesOn adds the rules of a base behind the first one of a spec, which is about all devices: later rules win. That
// of the base about all devices is left out.
func rulesOn(own, base []specs.LinuxDeviceCgroup) []specs.LinuxDeviceCgroup {
	var added []specs.LinuxDeviceCgroup
	for _, rule := range base {
		if rule.Type != "" && rule.Type != "a" || rule.Major != nil || rule.Minor != nil {
			added = append(added, rule)
		}
	}
	if len(own) == 0 {
		return added
	}
	return slices.Concat(own[:1], added, own[1:])
}

// with returns list and what more has under other names.
func with[T any](list, more []T, name func(T) string) []T {
	all := slices.Clone(list)
	for _, added := range more {
		if !slices.ContainsFunc(list, func(known T) bool { return name(known) == name(added) }) {
			all = append(all, added)
		}
	}
	return all
}

// fill sets each field of to that is empty to that of from, also in structs below, and adds the keys of maps that to
// does not have. Lists with an entry stay.
func fill(to, from reflect.Value) {
	switch to.Kind() {
	case reflect.Struct:
		for i := range to.NumField() {
			fill(to.Field(i), from.Field(i))
		}
	case reflect.Pointer:
		switch {
		case to.IsNil():
			to.Set(from)
		case !from.IsNil() && to.Type().Elem().Kind() == reflect.Struct:
			fill(to.Elem(), from.Elem())
		}
	case reflect.Map:
		if to.IsNil() && !from.IsNil() {
			to.Set(reflect.MakeMap(to.Type()))
		}
		for _, key := range from.MapKeys() {
			if !to.MapIndex(key).IsValid() {
				to.SetMapIndex(key, from.MapIndex(key))
			}
		}
	case reflect.Slice:
		if to.Len() == 0 {
			to.Set(from)
		}
	default:
		if to.IsZero() {
			to.Set(from)
		}
	}
}
