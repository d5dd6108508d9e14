// Package handler has the table of runtime handlers. A handler says what runs the containers of a pod,
// and which of the engine's rules are different for them.
package handler

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/engine/basespec"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
)

// Kind is what runs the containers of a handler.
type Kind string

// The kinds.
const (
	// Builtin is the supervisor itself.
	Builtin Kind = "builtin"
	// OCI is an OCI runtime's program, which the supervisor runs.
	OCI Kind = "oci"
	// Shim is a shim of containerd, which the supervisor starts for each pod.
	Shim Kind = "shim"
)

// Handler is an entry of the table. A sandbox's record has the one that it was created with: a later change
// of the configuration does not affect its containers. The zero value is berth itself, with the
// engine's rules.
type Handler struct {
	Name string `json:"name,omitempty"`
	Kind Kind   `json:"kind,omitempty"`
	// Path, Args, Options and Root are those of supervisor.Handler, for OCI and Shim. Path is a name without
	// a directory when the program is not in PATH.
	Path    string   `json:"path,omitempty"`
	Args    []string `json:"args,omitempty"`
	Options []string `json:"options,omitempty"`
	Root    string   `json:"root,omitempty"`
	// IsSandbox is that of supervisor.Handler: the runtime is the sandbox. A pod has a root container, or, with
	// SandboxAPI, the shim makes the sandbox by the sandbox API.
	IsSandbox  bool `json:"isSandbox,omitempty"`
	SandboxAPI bool `json:"sandboxAPI,omitempty"`

	// These replace the engine's rules, unless they are nil.
	PrivilegedWithoutHost *bool    `json:"privilegedWithoutHost,omitempty"`
	PrivilegedAllAllowed  *bool    `json:"privilegedAllAllowed,omitempty"`
	PodAnnotations        []string `json:"podAnnotations"`
	ContainerAnnotations  []string `json:"containerAnnotations"`
	HookDirs              []string `json:"hookDirs"`
	// SeccompProfile is the path of the profile that RuntimeDefault means, "" for the engine's.
	SeccompProfile string `json:"seccompProfile,omitempty"`
	// BaseSpec is the path of the OCI spec that those of containers are based on, "" for none.
	BaseSpec string `json:"baseSpec,omitempty"`
	// CgroupWritable lets unprivileged containers write their cgroups (v2).
	CgroupWritable bool `json:"cgroupWritable,omitempty"`
	// WritableLimit replaces the engine's, unless it is nil.
	WritableLimit *int64 `json:"writableLimit,omitempty"`
	// Snapshotter is the proxy snapshotter that makes the root filesystems of its containers, "" for none; see
	// image.RootfsSpec.
	Snapshotter string `json:"snapshotter,omitempty"`
	// Platform is that of the images of its pods, "" for the node's. Package pod chooses the images.
	Platform string `json:"platform,omitempty"`
}

// SnapshotterName returns Snapshotter, "" for nil.
func (h *Handler) SnapshotterName() string {
	if h == nil {
		return ""
	}
	return h.Snapshotter
}

// Base reads the OCI spec that those of containers are based on, nil for none. See basespec.Read.
func (h *Handler) Base() (*specs.Spec, error) {
	if h == nil {
		return nil, nil //nolint:nilnil // no base is no failure
	}
	return basespec.Read(h.Name, h.BaseSpec)
}

// Program returns what the supervisor needs to run containers, nil for the supervisor itself.
func (h *Handler) Program() *supervisor.Handler {
	if !h.hasProgram() {
		return nil
	}
	program := &supervisor.Handler{Name: h.Name, Path: h.Path, Args: h.Args, Options: h.Options, Root: h.Root}
	if h.Kind == Shim {
		program.Protocol, program.IsSandbox = supervisor.ProtocolShim, h.IsSandbox
		if h.SandboxAPI {
			program.Protocol = supervisor.ProtocolSandbox
		}
	}
	return program
}

// MakesSandbox reports whether the runtime is the sandbox itself.
func (h *Handler) MakesSandbox() bool { return h != nil && h.Kind == Shim && h.IsSandbox }

func (h *Handler) hasProgram() bool { return h != nil && (h.Kind == OCI || h.Kind == Shim) }

// Check returns an error when pods of the handler cannot run now. Kind Unavailable. It waits for the file system of the
// program: see Prober.Check.
func (h *Handler) Check() error {
	if !h.hasProgram() {
		return nil
	}
	if !filepath.IsAbs(h.Path) {
		return fmt.Errorf("unable to get OCI runtime: handler %q: %s is not in berth's PATH: %w", h.Name, h.Path, errs.Unavailable)
	}
	info, err := os.Stat(h.Path)
	switch {
	case err != nil:
		return fmt.Errorf("unable to get OCI runtime: handler %q: %w: %w", h.Name, err, errs.Unavailable)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("unable to get OCI runtime: handler %q: %s is not an executable file: %w", h.Name, h.Path, errs.Unavailable)
	}
	return nil
}

// Table has all handlers by their names, and the name of the default one, "" for berth itself.
type Table struct {
	Handlers map[string]Handler
	Default  string
}

// Find returns the handler of a name; "" is the default. Kind Invalid when there is none.
func (t Table) Find(name string) (*Handler, error) {
	name = cmp.Or(name, t.Default)
	if name == "" {
		return &Handler{Kind: Builtin}, nil
	}
	h, ok := t.Handlers[name]
	if !ok {
		has := "none has a name"
		if len(t.Handlers) > 0 {
			has = "there are " + strings.Join(t.names(), ", ")
		}
		return nil, fmt.Errorf("runtime_handler: unable to get OCI runtime: no runtime for %q is configured (%s): %w", name, has, errs.Invalid)
	}
	return &h, nil
}

func (t Table) names() []string { return slices.Sorted(maps.Keys(t.Handlers)) }

// List returns the handlers as clients name them: the default one as "", and each by its name.
func (t Table) List() []Named {
	list := []Named{{Name: ""}}
	if h, err := t.Find(""); err == nil {
		list[0].Handler = h
	}
	for _, name := range t.names() {
		h := t.Handlers[name]
		list = append(list, Named{name, &h})
	}
	return list
}

// Named is a handler under a name of clients.
type Named struct {
	Name    string
	Handler *Handler
}
