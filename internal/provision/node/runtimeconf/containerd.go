package runtimeconf

import (
	"fmt"
	"strconv"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// ContainerdDropInDir is the directory for other tools' files: berth must not own a file that
// another tool writes (nvidia-ctk).
const ContainerdDropInDir = "/etc/containerd/conf.d"

// The names of containerd's plugins.
const (
	criV2      = "io.containerd.grpc.v1.cri" // up to 1.x: everything; later: streaming
	criImages  = "io.containerd.cri.v1.images"
	criRuntime = "io.containerd.cri.v1.runtime"
	nriPlugin  = "io.containerd.nri.v1.nri"
	serverGRPC = "io.containerd.server.v1.grpc"
	serverTTRP = "io.containerd.server.v1.ttrpc"
)

// ContainerdSchema is the version of the configuration that is written for a version
// of containerd: the newest that it reads, since it warns of older ones. Zero is the
// newest.
func ContainerdSchema(v nodefile.Version) int {
	switch {
	case v.IsZero() || !v.Less(2, 3):
		return 4
	case !v.Less(2, 0):
		return 3
	default:
		return 2
	}
}

// Containerd writes config.toml. A setting that the version lacks is an error of kind
// errs.Unsupported.
func Containerd(m Model) (string, error) {
	schema := ContainerdSchema(m.Version)
	if !m.Version.IsZero() && m.Version.Less(1, 6) {
		return "", fmt.Errorf("runtime.version: containerd %v: want 1.6 or newer: %w", m.Version, errs.Unsupported)
	}
	if schema == 2 && m.Version.Less(1, 7) && m.NRI.Enabled != nil && *m.NRI.Enabled {
		return "", fmt.Errorf("runtime.nri.enabled: containerd %v serves no NRI plugins; want 1.7 or newer, or leave this out: %w", m.Version, errs.Unsupported)
	}
	for i, h := range m.Handlers {
		if schema == 2 && m.Version.Less(1, 7) && h.Snapshotter != "" {
			return "", fmt.Errorf("runtime.handlers[%d].snapshotter: containerd %v has one snapshotter for all handlers; want 1.7 or newer, or leave this out: %w", i, m.Version, errs.Unsupported)
		}
	}
	top := table{"version": schema, "imports": []string{ContainerdDropInDir + "/*.toml"}}
	setText(top, "root", m.Root)
	setText(top, "state", m.State)
	setText(sub(top, "debug"), "level", m.LogLevel)
	containerdSocket(top, schema, m.Socket)
	plugins := sub(top, "plugins")
	if schema == 2 {
		containerdV2(sub(plugins, criV2), m)
	} else {
		containerdImages(sub(plugins, criImages), m)
		containerdRuntime(sub(plugins, criRuntime), m)
	}
	if !m.Version.Less(1, 7) || m.Version.IsZero() {
		containerdNRI(plugins, m.NRI)
	}
	prune(top)
	if err := add(top, m.Additions); err != nil {
		return "", err
	}
	return render(top)
}

func containerdSocket(top table, schema int, socket string) {
	switch {
	case socket == "":
	case schema == 4:
		sub(top, "plugins", serverGRPC)["address"] = socket
		sub(top, "plugins", serverTTRP)["address"] = socket + ".ttrpc"
	default:
		sub(top, "grpc")["address"] = socket
	}
}

// containerdV2 fills the single CRI section of 1.x.
func containerdV2(cri table, m Model) {
	setText(cri, "sandbox_image", m.SandboxImage)
	cri["enable_selinux"] = m.SELinux
	if HasCDI("containerd", m.Version) {
		cri["enable_cdi"] = len(m.CDISpecDirs) > 0
		setList(cri, "cdi_spec_dirs", m.CDISpecDirs)
	}
	setText(sub(cri, "containerd"), "snapshotter", m.Snapshotter)
	setText(sub(cri, "registry"), "config_path", m.RegistryDir)
	containerdCNI(sub(cri, "cni"), m)
	containerdHandlers(sub(cri, "containerd"), m)
}

func containerdImages(images table, m Model) {
	setText(images, "snapshotter", m.Snapshotter)
	setText(sub(images, "pinned_images"), "sandbox", m.SandboxImage)
	setText(sub(images, "registry"), "config_path", m.RegistryDir)
}

func containerdRuntime(runtime table, m Model) {
	runtime["enable_selinux"] = m.SELinux
	// From 2.2 on CDI is always on; only an empty list of directories turns it off.
	if m.Version.Less(2, 2) && !m.Version.IsZero() {
		runtime["enable_cdi"] = len(m.CDISpecDirs) > 0
		setList(runtime, "cdi_spec_dirs", m.CDISpecDirs)
	} else {
		runtime["cdi_spec_dirs"] = append([]string{}, m.CDISpecDirs...)
	}
	containerdCNI(sub(runtime, "cni"), m)
	containerdHandlers(sub(runtime, "containerd"), m)
}

// OnePluginDir reports whether a containerd takes CNI plugins from a single directory.
func OnePluginDir(v nodefile.Version) bool { return !v.IsZero() && v.Less(2, 1) }

func containerdCNI(cni table, m Model) {
	setText(cni, "conf_dir", m.CNI.ConfDir)
	setText(cni, "conf_template", m.CNI.Template)
	switch {
	case len(m.CNI.BinDirs) == 0:
	case !OnePluginDir(m.Version):
		cni["bin_dirs"] = m.CNI.BinDirs
	default:
		cni["bin_dir"] = m.CNI.BinDirs[0]
	}
}

func containerdHandlers(containerd table, m Model) {
	containerd["default_runtime_name"] = "runc"
	setText(containerd, "default_runtime_name", m.DefaultHandler)
	runtimes := sub(containerd, "runtimes")
	runc := nodefile.Handler{Name: "runc", Type: "oci"}
	for _, h := range append([]nodefile.Handler{runc}, m.Handlers...) {
		runtimes[h.Name] = containerdHandler(h, m)
	}
}

func containerdHandler(h nodefile.Handler, m Model) table {
	t := table{}
	options := table{}
	for name, value := range h.Options {
		options[name] = value
	}
	if h.Type == "oci" {
		t["runtime_type"] = "io.containerd.runc.v2"
		options["SystemdCgroup"] = m.SystemdCgroup
		setText(options, "BinaryName", h.Path)
		setText(options, "Root", h.Root)
	} else {
		t["runtime_type"] = h.RuntimeType
		setText(t, "runtime_path", h.Path)
		setText(options, "ConfigPath", h.ConfigPath)
	}
	if !m.Version.Less(1, 7) || m.Version.IsZero() {
		setText(t, "snapshotter", h.Snapshotter)
	}
	setList(t, "pod_annotations", h.PodAnnotations)
	if h.PrivilegedWithoutHost {
		t["privileged_without_host_devices"] = true
	}
	if len(options) > 0 {
		t["options"] = options
	}
	return t
}

func containerdNRI(plugins table, nri nodefile.NRI) {
	t := table{}
	if nri.Enabled != nil {
		t["disable"] = !*nri.Enabled
	}
	setText(t, "socket_path", nri.Socket)
	setDuration(t, "plugin_registration_timeout", nri.RegistrationTimeout)
	setDuration(t, "plugin_request_timeout", nri.RequestTimeout)
	if len(t) > 0 {
		plugins[nriPlugin] = t
	}
}

func setDuration(t table, key string, d nodefile.Duration) {
	if d > 0 {
		t[key] = durationText(time.Duration(d))
	}
}

// durationText writes 5s rather than 5000ms.
func durationText(d time.Duration) string {
	if d%time.Second == 0 {
		return strconv.Itoa(int(d/time.Second)) + "s"
	}
	return d.String()
}
