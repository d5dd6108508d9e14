// Package runtimeconf writes the configurations of container runtimes from one model: containerd's
// three schemas, CRI-O's drop-in, dockerd's keys, berth's file, and their registry settings. It is
// pure, and knows no task and no machine.
package runtimeconf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/registries"
)

// Model has a runtime's settings, with all defaults resolved. A writer uses those that its runtime
// has.
type Model struct {
	// Version decides the schema; zero is the newest that is known.
	Version nodefile.Version
	// Socket, Root and State are paths; empty leaves the runtime's default.
	Socket, Root, State string
	LogLevel            string
	SandboxImage        string
	Snapshotter         string
	// SystemdCgroup is the cgroup driver: systemd, or cgroupfs.
	SystemdCgroup bool
	// SELinux: label containers; for berth, if the machine has SELinux.
	SELinux bool
	// CDISpecDirs is empty when CDI is off.
	CDISpecDirs []string
	// NRI.Enabled is nil if the runtime decides.
	NRI nodefile.NRI
	// Handlers beside the default one, in any order.
	Handlers []nodefile.Handler
	// DefaultHandler is empty for the runtime's own.
	DefaultHandler string
	CNI            CNI
	// RegistryDir is the directory of the hosts.toml tree; empty when there is none.
	RegistryDir string
	Registries  []registries.Registry
	// ServesPods is set where berth serves CRI over docker: CNI is the network of pods then, and not
	// that of docker's own containers.
	ServesPods bool
	// Logs is set where the runtime rotates logs itself (docker).
	Logs *nodefile.Logs
	// Additions are dotted paths to values.
	Additions map[string]any
}

// CNI has a runtime's network settings.
type CNI struct {
	ConfDir string
	BinDirs []string
	// Template is a file that containerd makes its network from.
	Template string
	// Builtin makes berth use its own bridge; Subnets and MTU are for it.
	Builtin bool
	Subnets []string
	MTU     int
}

const header = "# Made by `berth node` from the node file. Changes here are undone; put them there.\n"

// table is a TOML table or a JSON object.
type table = map[string]any

// sub returns the table at a path, and creates it if needed.
func sub(t table, path ...string) table {
	for _, part := range path {
		next, ok := t[part].(table)
		if !ok {
			next = table{}
			t[part] = next
		}
		t = next
	}
	return t
}

// setText sets a key unless the value is empty.
func setText(t table, key, value string) {
	if value != "" {
		t[key] = value
	}
}

func setList(t table, key string, values []string) {
	if len(values) > 0 {
		t[key] = values
	}
}

// prune drops empty tables.
func prune(t table) {
	for key, value := range t {
		if inner, ok := value.(table); ok {
			if prune(inner); len(inner) == 0 {
				delete(t, key)
			}
		}
	}
}

// add sets the additions, in the order of their paths.
func add(t table, additions map[string]any) error {
	for _, path := range slices.Sorted(maps.Keys(additions)) {
		parts, err := nodefile.SplitPath(path)
		if err != nil {
			return fmt.Errorf("runtime.config.additions[%q]: %w: %w", path, err, errs.Invalid)
		}
		at := t
		for i, part := range parts[:len(parts)-1] {
			next, isTable := at[part].(table)
			if !isTable && at[part] != nil {
				return fmt.Errorf("runtime.config.additions[%q]: %s is not a table; want a path through tables: %w", path, strings.Join(parts[:i+1], "."), errs.Invalid)
			}
			if !isTable {
				next = table{}
				at[part] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = additions[path]
	}
	return nil
}

// render writes TOML with sorted keys.
func render(t table) (string, error) {
	text, err := toml.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("runtime.config.additions: %w; want plain values, lists and mappings: %w", err, errs.Invalid)
	}
	return header + string(text), nil
}
