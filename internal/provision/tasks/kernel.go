package tasks

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Sysctls are kernel settings: a file that holds them over a reboot, and their values
// now.
type Sysctls struct {
	M provision.Meta
	// Path is the file: "/etc/sysctl.d/99-berth-node.conf".
	Path   string
	Values []Sysctl
}

// Sysctl is one setting.
type Sysctl struct {
	// Key is dotted: "net.ipv4.ip_forward".
	Key, Value string
	// Optional: no error where the kernel has no such key.
	Optional bool
}

// ID is "sysctls PATH".
func (s Sysctls) ID() string { return "sysctls " + s.Path }

// Meta returns M.
func (s Sysctls) Meta() provision.Meta { return s.M }

// Objects are the file, then the keys.
func (s Sysctls) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	list := []provision.Object{{Kind: kindFile, Name: s.Path}}
	key := regexp.MustCompile(`^[A-Za-z0-9_*-]+([./][A-Za-z0-9_*:@-]+)+$`)
	for _, v := range s.Values {
		if !key.MatchString(v.Key) || strings.ContainsAny(v.Value, "\n\x00") {
			return nil, fmt.Errorf("sysctl %q = %q: %w", v.Key, v.Value, errs.Invalid)
		}
		list = append(list, provision.Object{Kind: kindSysctl, Name: v.Key})
	}
	return list, checkPath(s.Path)
}

func (s Sysctls) file() desiredFile {
	var b strings.Builder
	b.WriteString("# Written by berth node; changes are undone by the next apply.\n")
	for _, v := range s.Values {
		if v.Optional {
			b.WriteString("-") // no error where the kernel has no such key
		}
		fmt.Fprintf(&b, "%s = %s\n", v.Key, v.Value)
	}
	return desiredFile{path: s.Path, content: b.String(), mode: defaultFileMode}
}

// Check compares the file and the values now.
func (s Sysctls) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	d, err := s.file().check(host)
	if err != nil {
		return provision.Change{}, err
	}
	diffs := []provision.Diff{d}
	for _, v := range s.Values {
		now, differs, err := v.now(host)
		if err != nil {
			return provision.Change{}, err
		}
		if differs {
			diffs = append(diffs, provision.Diff{
				Object: provision.Object{Kind: kindSysctl, Name: v.Key}, Action: provision.Modify, Reason: "value differs",
				Fields: []provision.Field{{Name: "value", From: now, To: v.Value}},
			})
		}
	}
	return change(diffs...), nil
}

// now reads the value, and reports whether it must be set.
func (v Sysctl) now(host provision.Host) (string, bool, error) {
	if !host.Live() {
		return "", false, nil
	}
	now, err := host.Kernel().Sysctl(v.Key)
	if errors.Is(err, errs.NotFound) {
		return "", !v.Optional, nil
	}
	return now, !sameWords(now, v.Value), err
}

// sameWords compares values as the kernel does: "32768\t60999" is "32768 60999".
func sameWords(a, b string) bool {
	return strings.Join(strings.Fields(a), " ") == strings.Join(strings.Fields(b), " ")
}

// Apply writes the file and sets the values.
func (s Sysctls) Apply(_ context.Context, host provision.Host) error {
	if err := s.file().write(host); err != nil {
		return err
	}
	for _, v := range s.Values {
		_, differs, err := v.now(host)
		if err != nil {
			return err
		}
		if !differs {
			continue
		}
		if err := host.Kernel().SetSysctl(v.Key, v.Value); err != nil {
			return err
		}
	}
	return nil
}

// sysctlKind is a value of the running kernel.
type sysctlKind struct{}

// Read returns the value; one that the host does not report does not exist.
func (sysctlKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	if !host.Live() {
		return provision.State{}, nil
	}
	value, err := host.Kernel().Sysctl(name)
	if err != nil {
		return provision.State{}, errs.IgnoreNotFound(err)
	}
	return provision.State{Exists: true, Attrs: map[string]string{"value": value}}, nil
}

// Restore sets the value.
func (k sysctlKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	if err != nil || !state.Exists || !now.Exists || sameWords(now.Attrs["value"], state.Attrs["value"]) {
		return err
	}
	return host.Kernel().SetSysctl(name, state.Attrs["value"])
}

// Modules are kernel modules: a file that loads them at boot, and their present state.
type Modules struct {
	M provision.Meta
	// Path is the file: "/etc/modules-load.d/berth-node.conf".
	Path string
	// Names in order. Built-in ones count as loaded.
	Names []string
	// Optional lists those of Names that a kernel may lack.
	Optional []string
}

// ID is "modules PATH".
func (m Modules) ID() string { return "modules " + m.Path }

// Meta returns M.
func (m Modules) Meta() provision.Meta { return m.M }

// Objects are the file, then the modules.
func (m Modules) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	list := []provision.Object{{Kind: kindFile, Name: m.Path}}
	good := regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	for _, name := range m.Names {
		if !good.MatchString(name) {
			return nil, fmt.Errorf("kernel module %q: %w", name, errs.Invalid)
		}
		list = append(list, provision.Object{Kind: kindModule, Name: name})
	}
	return list, checkPath(m.Path)
}

func (m Modules) file() desiredFile {
	content := "# Written by berth node; changes are undone by the next apply.\n" + strings.Join(m.Names, "\n") + "\n"
	return desiredFile{path: m.Path, content: content, mode: defaultFileMode}
}

// Check compares the file, and looks for modules that are not loaded.
func (m Modules) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	d, err := m.file().check(host)
	if err != nil {
		return provision.Change{}, err
	}
	missing, err := m.missing(host)
	if err != nil {
		return provision.Change{}, err
	}
	diffs := []provision.Diff{d}
	for _, name := range missing {
		diffs = append(diffs, provision.Diff{
			Object: provision.Object{Kind: kindModule, Name: name}, Action: provision.Create, Reason: "is not loaded",
		})
	}
	return change(diffs...), nil
}

// missing lists modules to load.
func (m Modules) missing(host provision.Host) ([]string, error) {
	var list []string
	if !host.Live() {
		return nil, nil
	}
	for _, name := range m.Names {
		state, err := host.Kernel().Module(name)
		if err != nil {
			return nil, err
		}
		if state == provision.ModuleAvailable || state == provision.ModuleAbsent && !slices.Contains(m.Optional, name) {
			list = append(list, name)
		}
	}
	return list, nil
}

// Apply writes the file and loads modules, in order.
func (m Modules) Apply(ctx context.Context, host provision.Host) error {
	if err := m.file().write(host); err != nil {
		return err
	}
	missing, err := m.missing(host)
	if err != nil {
		return err
	}
	for _, name := range missing {
		if err := host.Kernel().LoadModule(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// moduleKind is a module of the running kernel.
type moduleKind struct{}

// Read reports whether it is loaded.
func (moduleKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	if !host.Live() {
		return provision.State{}, nil
	}
	state, err := host.Kernel().Module(name)
	return provision.State{Exists: state == provision.ModuleLoaded}, err
}

// Restore unloads a module that was not loaded, if nothing uses it.
func (k moduleKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	switch {
	case err != nil || now.Exists == state.Exists || !host.Live():
		return err
	case state.Exists:
		return host.Kernel().LoadModule(ctx, name)
	}
	return host.Kernel().UnloadModule(ctx, name)
}
