// Package allow says which specs berth's own init can carry out. A field that it does not name, also one
// that a later version of the OCI spec adds, is a reason against the spec.
package allow

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Facts are what the host and the caller decide.
type Facts struct {
	// Host is why no container of this host can have berth's own init, "" for no reason.
	Host string
}

// Create reports whether berth's own init can create a container of spec. The reason says why not, for
// people. spec has passed the checks of the runtime. It is not changed.
func Create(spec *specs.Spec, facts Facts) (ok bool, reason string) {
	if facts.Host != "" {
		return false, facts.Host
	}
	rest := *spec
	rest.Version, rest.Annotations = "", nil
	rest.Hostname, rest.Domainname = "", ""
	rest.Root = nil // a path, and whether it is read-only
	for _, check := range []func(*specs.Spec) string{process, mounts, linux} {
		if reason := check(&rest); reason != "" {
			return false, reason
		}
	}
	if rest.Hooks != nil {
		h := *rest.Hooks
		h.Poststart, h.Poststop = nil, nil // the supervisor runs them, for both starters
		if name := leftover(reflect.ValueOf(h), "hooks"); name != "" {
			return false, notHandled(name)
		}
		rest.Hooks = nil
	}
	if name := leftover(reflect.ValueOf(rest), ""); name != "" {
		return false, notHandled(name)
	}
	return true, ""
}

func notHandled(name string) string { return name + " is not handled by berth's init" }

// process checks and clears the process.
func process(rest *specs.Spec) string {
	if rest.Process == nil {
		return "the spec has no process"
	}
	p := *rest.Process
	p.Terminal, p.ConsoleSize = false, nil
	p.User.UID, p.User.GID, p.User.Umask, p.User.AdditionalGids = 0, 0, nil, nil
	p.Args, p.Env, p.Cwd = nil, nil, ""
	p.Capabilities, p.Rlimits, p.NoNewPrivileges = nil, nil, false
	p.ApparmorProfile, p.SelinuxLabel = "", ""
	p.OOMScoreAdj = nil
	if name := leftover(reflect.ValueOf(p), "process"); name != "" {
		return notHandled(name)
	}
	rest.Process = nil
	return ""
}

// mounts checks and clears the mounts.
func mounts(rest *specs.Spec) string {
	for _, m := range rest.Mounts {
		bind := slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if !bind && !slices.Contains(filesystems(), m.Type) {
			return fmt.Sprintf("a mount of type %q is not handled by berth's init", m.Type)
		}
		for _, option := range m.Options {
			if slices.Contains(refusedOptions(), option) {
				return fmt.Sprintf("mount option %q is not handled by berth's init", option)
			}
		}
		m.Destination, m.Type, m.Source, m.Options = "", "", "", nil
		if name := leftover(reflect.ValueOf(m), "mounts"); name != "" {
			return notHandled(name)
		}
	}
	rest.Mounts = nil
	return ""
}

// filesystems are the types of mounts that are not bind mounts.
func filesystems() []string { return []string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup"} }

// refusedOptions are options of mounts that libcontainer knows and berth's init does not. Others are
// flags that it knows, or go to the filesystem.
func refusedOptions() []string {
	return []string{"remount", "iversion"}
}

// smallMemory is a memory limit that a container may exceed before its program runs. libcontainer's init
// needs up to 3 MiB, and it reports when the limit is lower. Of the memory of berth's init, less is charged
// to the container, so the program would be killed.
const smallMemory = 4 << 20

// linux checks and clears what is for Linux only.
func linux(rest *specs.Spec) string {
	if rest.Linux == nil {
		return "the spec has no linux section"
	}
	l := *rest.Linux
	hasMounts, hasUser := false, false
	for _, ns := range l.Namespaces {
		switch ns.Type {
		case specs.MountNamespace:
			if ns.Path != "" {
				return "joining a mount namespace is not handled by berth's init"
			}
			hasMounts = true
		case specs.NetworkNamespace:
			if ns.Path == "" {
				return "making a network namespace is not handled by berth's init"
			}
		case specs.UserNamespace:
			if ns.Path == "" {
				return "making a user namespace is not handled by berth's init"
			}
			hasUser = true
		case specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.CgroupNamespace:
		default:
			return fmt.Sprintf("a namespace of type %q is not handled by berth's init", ns.Type)
		}
	}
	if !hasMounts {
		return "a container without a mount namespace is not handled by berth's init"
	}
	l.Namespaces = nil
	for _, d := range l.Devices {
		if !slices.Contains([]string{"c", "u", "b", "p"}, d.Type) {
			return fmt.Sprintf("a device of type %q is not handled by berth's init", d.Type)
		}
		d.Path, d.Type, d.Major, d.Minor, d.FileMode, d.UID, d.GID = "", "", 0, 0, nil, nil, nil
		if name := leftover(reflect.ValueOf(d), "linux.devices"); name != "" {
			return notHandled(name)
		}
	}
	l.Devices = nil
	if !slices.Contains([]string{"", "rprivate", "rslave", "rshared"}, l.RootfsPropagation) {
		return fmt.Sprintf("linux.rootfsPropagation %q is not handled by berth's init", l.RootfsPropagation)
	}
	l.RootfsPropagation = ""
	if r := l.Resources; r != nil && r.Memory != nil && r.Memory.Limit != nil && *r.Memory.Limit > 0 && *r.Memory.Limit < smallMemory {
		return fmt.Sprintf("with a memory limit of %d bytes only libcontainer can report that it is too low", *r.Memory.Limit)
	}
	l.Resources = nil // package cgroups sets all of them, for both starters
	l.CgroupsPath, l.Sysctl = "", nil
	l.MaskedPaths, l.ReadonlyPaths = nil, nil
	l.Seccomp = nil // the filter is libcontainer's own; where there is none, the caller knows
	// Those of a user namespace that exists say what it has already.
	if hasUser || len(l.UIDMappings) == 0 && len(l.GIDMappings) == 0 {
		l.UIDMappings, l.GIDMappings = nil, nil
	}
	if name := leftover(reflect.ValueOf(l), "linux"); name != "" {
		return notHandled(name)
	}
	rest.Linux = nil
	return ""
}

// leftover returns the name of a field below v that is not empty, as the OCI spec has it, or "".
func leftover(v reflect.Value, name string) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		empty := v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
		if empty {
			return ""
		}
		return name
	}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		inner := strings.TrimPrefix(name+"."+tag, ".")
		if field.Type.Kind() == reflect.Pointer && !v.Field(i).IsNil() {
			return inner // also an empty one says something
		}
		if found := leftover(v.Field(i), inner); found != "" {
			return found
		}
	}
	return ""
}
