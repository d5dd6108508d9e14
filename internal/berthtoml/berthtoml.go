// Package berthtoml writes berth.toml, the configuration of `berth serve`, for those that set
// up a node: `berth node` and `berth cluster`. It knows the keys that they set, and neither the
// other keys nor the daemon's defaults.
package berthtoml

import (
	"fmt"

	"github.com/pelletier/go-toml/v2"
)

// File is one berth.toml. A zero field leaves the daemon's default.
type File struct {
	// Engine is native or docker.
	Engine string
	// Socket is the path of the CRI socket.
	Socket string
	// Root and State are directories.
	Root, State string
	// LogLevel is debug, info, warn or error.
	LogLevel string
	Network  Network
	// CgroupDriver is systemd or cgroupfs.
	CgroupDriver string
	// SELinux is auto, off or lenient.
	SELinux string
	// CDISpecDirs are directories of CDI specifications. An empty list that is not nil turns
	// CDI off.
	CDISpecDirs []string
	// RegistryDirs are directories of hosts.toml files, in place of the default ones.
	RegistryDirs []string
	// Handlers are those beside berth itself. DefaultHandler is the name of one of them, "" for berth itself.
	Handlers       []Handler
	DefaultHandler string
}

// Handler is a runtime handler: an OCI runtime's program, or a shim of containerd.
type Handler struct {
	Name string
	// Kind is oci or shim.
	Kind string
	// Path is that of the program, or a shim's type. Root is the directory of its state, "" for the default.
	Path, Root string
	// Sandbox is runtime when the shim's runtime makes the sandbox, "" when berth does.
	Sandbox string
	// Options are those of a shim, "Name=value".
	Options []string
	// PodAnnotations are patterns of annotations that reach the runtime, nil for those of all pods.
	PodAnnotations []string
	// PrivilegedWithoutHostDevices denies privileged containers the host's devices.
	PrivilegedWithoutHostDevices bool
}

func (h Handler) table() map[string]any {
	table := map[string]any{"kind": h.Kind, "path": h.Path}
	setText(table, "root", h.Root)
	setText(table, "sandbox", h.Sandbox)
	setList(table, "options", h.Options)
	if len(h.PodAnnotations) > 0 {
		table["pod_annotations"] = h.PodAnnotations
	}
	if h.PrivilegedWithoutHostDevices {
		table["privileged_without_host_devices"] = true
	}
	return table
}

// Network is the table of that name.
type Network struct {
	// Mode is cni or builtin.
	Mode string
	// ConfDir and BinDirs are where CNI configurations and plugins lie.
	ConfDir string
	BinDirs []string
	// Subnets of this node's pods, as CIDRs, and MTU of their links are for mode builtin.
	Subnets []string
	MTU     int
	// AwaitPodCIDR leaves the subnets of the node to the kubelet. ClusterSubnets, as CIDRs, are
	// those of all nodes' pods.
	AwaitPodCIDR   bool
	ClusterSubnets []string
}

// Text renders the file after a comment, each line of which begins with "#" and ends with a line
// break.
func (f File) Text(comment string) (string, error) {
	text, err := toml.Marshal(f.Table())
	if err != nil {
		return "", fmt.Errorf("cannot write berth.toml: %w", err)
	}
	return comment + string(text), nil
}

// Table returns the keys that the file sets, as tables of TOML, for callers that add keys.
func (f File) Table() map[string]any {
	top := map[string]any{}
	setText(top, "engine", f.Engine)
	if f.Socket != "" {
		top["listen"] = "unix://" + f.Socket
	}
	setText(top, "root", f.Root)
	setText(top, "state", f.State)

	log := map[string]any{}
	setText(log, "level", f.LogLevel)
	setTable(top, "log", log)

	setTable(top, "network", f.Network.table())

	runtime := map[string]any{}
	setText(runtime, "cgroup_driver", f.CgroupDriver)
	setText(runtime, "selinux", f.SELinux)
	setText(runtime, "default_handler", f.DefaultHandler)
	if f.CDISpecDirs != nil {
		runtime["cdi_spec_dirs"] = f.CDISpecDirs
	}
	setTable(top, "runtime", runtime)

	image := map[string]any{}
	setList(image, "registry_config_dirs", f.RegistryDirs)
	setTable(top, "image", image)

	handlers := map[string]any{}
	for _, h := range f.Handlers {
		handlers[h.Name] = h.table()
	}
	setTable(top, "handlers", handlers)
	return top
}

func (n Network) table() map[string]any {
	t := map[string]any{}
	setText(t, "mode", n.Mode)
	setText(t, "conf_dir", n.ConfDir)
	setList(t, "bin_dirs", n.BinDirs)
	setList(t, "subnets", n.Subnets)
	if n.MTU > 0 {
		t["mtu"] = n.MTU
	}
	if n.AwaitPodCIDR {
		t["await_pod_cidr"] = true
	}
	setList(t, "cluster_subnets", n.ClusterSubnets)
	return t
}

func setText(t map[string]any, key, value string) {
	if value != "" {
		t[key] = value
	}
}

func setList(t map[string]any, key string, values []string) {
	if len(values) > 0 {
		t[key] = values
	}
}

func setTable(t map[string]any, key string, inner map[string]any) {
	if len(inner) > 0 {
		t[key] = inner
	}
}
