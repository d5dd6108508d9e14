package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/supervisor/shimoptions"
)

// Handler is a runtime handler. A key that is not there (nil) has the value that [runtime] has.
type Handler struct {
	Kind    string   `toml:"kind" help:"What runs the containers. builtin is berth itself; oci is an OCI runtime's program, such as runc, crun or youki, which berth's supervisor runs; shim is a shim of containerd, which the supervisor starts for each pod. Required." oneof:"builtin oci shim"`
	Path    string   `toml:"path" help:"Absolute path of the program (kinds oci and shim). For kind shim also a runtime's type such as io.containerd.runc.v2, whose program is in PATH. Without the file, pods of the handler fail, and berth warns of it."`
	Args    []string `toml:"args" help:"Arguments of the program, before those that berth adds (kind oci)."`
	Options []string `toml:"options" help:"Options of the shim, each Name=value (kind shim), with containerd's names: BinaryName and others of containerd-shim-runc-v2; TypeUrl, ConfigPath, ConfigBody of other shims."`
	Root    string   `toml:"root" help:"Directory in which the program, or the OCI runtime of a shim, keeps the state of its containers (kinds oci and shim). No other use of the program may share it. Empty: handlers/NAME in the directory state."`

	Sandbox string `toml:"sandbox" help:"What makes the sandbox of a pod (kind shim). runtime is the shim's runtime, which is the sandbox itself (gVisor, Kata Containers): then a pod has a root container of berth's. api is the shim, by containerd's sandbox API, without a root container. Empty: berth, from namespaces and a cgroup of the host."`

	PrivilegedNoDevices   *bool    `toml:"privileged_without_host_devices" help:"As in [runtime], for pods of the handler."`
	PrivilegedAllowDevice *bool    `toml:"privileged_without_host_devices_all_devices_allowed" help:"As in [runtime], for pods of the handler."`
	PodAnnotations        []string `toml:"pod_annotations" help:"As in [runtime], for pods of the handler."`
	ContainerAnnotations  []string `toml:"container_annotations" help:"As in [runtime], for pods of the handler."`
	HookDirs              []string `toml:"hooks_dirs" help:"As in [runtime], for pods of the handler. With [] their containers have no such hooks."`
	SeccompProfile        string   `toml:"seccomp_profile" help:"As in [runtime], for pods of the handler. Empty: as in [runtime]."`
	BaseSpec              string   `toml:"base_runtime_spec" help:"Path of an OCI spec (JSON) on which those of the handler's containers are based, as with containerd. It adds what requests and berth do not set: limits of processes, capabilities to which requests add, hooks, mounts, environment, sysctls, resources. It is read for each container; pods and containers fail while it cannot be used."`
	CNIConfDir            string   `toml:"cni_conf_dir" help:"Directory of CNI configurations for pods of the handler (network.mode cni). Empty: network.conf_dir, which alone decides whether the node's network is ready."`
	Snapshotter           string   `toml:"snapshotter" help:"Where images go that are pulled for pods of the handler. erofs: berth makes an EROFS image of each layer, which the kernel mounts; docs/howto/erofs.md is the guide. The name of a proxy snapshotter (image.snapshotters): it gets the layers, and makes the root filesystems of containers; docs/howto/lazy-images.md is the guide. Empty: berth unpacks layers into directories."`
	Platform              string   `toml:"platform" help:"Platform of the images of the handler's pods, os/arch or os/arch/variant, such as wasi/wasm or linux/arm64. An image that is pulled for such a pod is the one for this platform, beside that for the node's under the same name. docs/howto/platforms.md is the guide. Empty: the node's."`
	CgroupWritable        bool     `toml:"cgroup_writable" help:"Unprivileged containers may write their own cgroups below /sys/fs/cgroup. Only on hosts with cgroup v2 alone; elsewhere pods of the handler fail."`
	WritableLimit         *int     `toml:"writable_limit" help:"As in [defaults], for pods of the handler."`
}

// The values of Handler.Sandbox by which the shim's runtime is the sandbox: it has a root container, or the shim makes the
// sandbox by containerd's sandbox API.
const (
	SandboxRuntime = "runtime"
	SandboxAPI     = "api"
)

// handlersKey is the key of the table of handlers.
const handlersKey = "handlers"

// handlerFields lists the keys of a handler.
func handlerFields(name string, h *Handler) []Field {
	value := reflect.ValueOf(h).Elem()
	fields := make([]Field, 0, value.NumField())
	for i := range value.NumField() {
		fields = append(fields, newField(handlersKey+"."+name+".", value.Type().Field(i).Tag, value.Field(i)))
	}
	return fields
}

// readHandlers reads the table of handlers.
func (l *loader) readHandlers(tree map[string]any) {
	l.cfg.Handlers = map[string]Handler{}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		key := handlersKey + "." + name
		table, ok := tree[name].(map[string]any)
		if !ok {
			l.fault(key, "want a table: [%s]", key)
			continue
		}
		h := &Handler{}
		fields := handlerFields(name, h)
		for _, inner := range slices.Sorted(maps.Keys(table)) {
			at := slices.IndexFunc(fields, func(f Field) bool { return f.Name() == inner })
			if at < 0 {
				l.fault(key+"."+inner, "no such key; a handler has %s", strings.Join(names(fields), ", "))
				continue
			}
			text, err := toml.Marshal(map[string]any{inner: table[inner]})
			if err == nil {
				err = toml.Unmarshal(text, h)
			}
			if err != nil {
				l.fault(key+"."+inner, "%s", describeTypeError(err, fields[at], table[inner]))
				delete(table, inner)
			}
		}
		l.cfg.Handlers[name] = *h
	}
}

func names(fields []Field) []string {
	all := make([]string, len(fields))
	for i, field := range fields {
		all[i] = field.Name()
	}
	return all
}

func (d *Daemon) checkHandlers(report func(key, format string, args ...any)) {
	for name, h := range d.Handlers {
		key := handlersKey + "." + name
		if !validHandlerName(name) {
			report(key, "%q: want a name that a RuntimeClass can have: lower-case letters, digits, '-' and '.', at most 253", name)
		}
		fields := handlerFields(name, &h)
		if problem := fields[0].checkOneOf(); problem != "" {
			report(key+".kind", "%s", problem)
			continue
		}
		switch h.Kind {
		case "oci":
			if !filepath.IsAbs(h.Path) {
				report(key+".path", "%q: want the absolute path of an OCI runtime's program", h.Path)
			}
			if len(h.Options) > 0 {
				report(key+".options", "kind oci has no options; its arguments are args")
			}
			if h.Sandbox != "" {
				report(key+".sandbox", "kind oci has none: a runtime that is the sandbox itself needs its shim (kind shim)")
			}
			checkRoot(key, &h, report)
		case "shim":
			checkShim(key, &h, report)
			checkRoot(key, &h, report)
		default:
			for _, field := range fields[1:6] {
				if !field.value.IsZero() {
					report(field.Key, "kind %s has no program", h.Kind)
				}
			}
		}
		d.checkSnapshotterOf(name, key+".snapshotter", &h, report)
		if _, err := image.ParsePlatform(h.Platform); err != nil && h.Platform != "" {
			report(key+".platform", "%q: want os/arch or os/arch/variant, such as wasi/wasm or linux/arm64", h.Platform)
		}
		checkPatterns(key+".pod_annotations", h.PodAnnotations, report)
		checkPatterns(key+".container_annotations", h.ContainerAnnotations, report)
		checkDirs(key+".hooks_dirs", h.HookDirs, report)
		for name, path := range map[string]string{"seccomp_profile": h.SeccompProfile, "base_runtime_spec": h.BaseSpec, "cni_conf_dir": h.CNIConfDir} {
			if path != "" && !filepath.IsAbs(path) {
				report(key+"."+name, "%q: want an absolute path", path)
			}
		}
		if h.CNIConfDir != "" && d.Network.Mode != "cni" {
			report(key+".cni_conf_dir", "%q: is not used, as network.mode is %s", h.CNIConfDir, d.Network.Mode)
		}
	}
	if name := d.Runtime.DefaultHandler; name != "" {
		h, ok := d.Handlers[name]
		if !ok {
			report("runtime.default_handler", "%q: there is no [%s.%s]", name, handlersKey, name)
		}
		if platform, err := image.ParsePlatform(h.Platform); err == nil && platform != "" {
			report("runtime.default_handler", "%q: the handler has a platform of its own (%s), and pods without a RuntimeClass have images for the node's", name, platform)
		}
	}
}

// checkSnapshotterOf checks the snapshotter of a handler.
func (d *Daemon) checkSnapshotterOf(name, key string, h *Handler, report func(key, format string, args ...any)) {
	switch {
	case h.Snapshotter == "":
		return
	case h.Snapshotter == ErofsSnapshotter:
		if d.Image.Snapshotter == "native" {
			report(key, "%q: its root filesystems are overlays, and image.snapshotter is native; use auto or overlay there", h.Snapshotter)
		}
		return
	case d.Image.ProxySnapshotters()[h.Snapshotter] == "":
		report(key, "%q: is not in image.snapshotters; add %q there, or use %q, which needs no entry", h.Snapshotter, h.Snapshotter+"=/PATH/OF/ITS/SOCKET", ErofsSnapshotter)
	}
	if limit, from := d.writableLimitOf(name); limit != 0 {
		report(key, "%q: cannot limit what containers write, and %s is %d; set %s.%s.writable_limit = 0", h.Snapshotter, from, limit, handlersKey, name)
	}
}

func checkRoot(key string, h *Handler, report func(key, format string, args ...any)) {
	if h.Root != "" && (!filepath.IsAbs(h.Root) || filepath.Clean(h.Root) == "/") {
		report(key+".root", "%q: want an absolute path other than /", h.Root)
	}
}

func checkShim(key string, h *Handler, report func(key, format string, args ...any)) {
	program := h.Path
	if !filepath.IsAbs(program) {
		program = shimoptions.Program(h.Path)
	}
	if program == "" {
		report(key+".path", "%q: want the absolute path of a shim's program, or a runtime's type such as io.containerd.runc.v2", h.Path)
	}
	if len(h.Args) > 0 {
		report(key+".args", "kind shim has no arguments; its options are options")
	}
	if !slices.Contains([]string{"", SandboxRuntime, SandboxAPI}, h.Sandbox) {
		report(key+".sandbox", "%q: want %q, %q, or nothing", h.Sandbox, SandboxRuntime, SandboxAPI)
	}
	if problem := shimoptions.Of(program).Check(h.Options); problem != "" {
		report(key+".options", "%s", problem)
	}
}

// validHandlerName reports whether Kubernetes takes a name as that of a handler (a DNS subdomain).
func validHandlerName(name string) bool {
	return len(name) <= 253 && validName(name) && strings.ToLower(name) == name &&
		strings.Trim(name, "-.") == name && !strings.Contains(name, "..")
}

// sampleHandlers renders the table of handlers, or an example as a comment when there is none.
func sampleHandlers(b *strings.Builder, handlers map[string]Handler) {
	if len(handlers) == 0 {
		example := Handler{Kind: "oci", Path: "/usr/sbin/runc"}
		fmt.Fprintf(b, "\n# %s A table for each, such as:\n#\n# [%s.runc]\n", handlersHelp, handlersKey)
		for _, field := range handlerFields("runc", &example) {
			if !field.value.IsZero() {
				fmt.Fprintf(b, "# %s = %s\n", field.Name(), field.TOML())
			}
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(handlers)) {
		h := handlers[name]
		fmt.Fprintf(b, "\n[%s.%s]\n", handlersKey, quoteKey(name))
		for _, field := range handlerFields(name, &h) {
			if !field.value.IsZero() {
				fmt.Fprintf(b, "# %s\n%s = %s\n", field.Help, field.Name(), field.TOML())
			}
		}
	}
}

// quoteKey is a name as a part of a key.
func quoteKey(name string) string {
	if strings.Contains(name, ".") {
		return `"` + name + `"`
	}
	return name
}

// referenceHandlers renders the table of handlers' keys.
func referenceHandlers(b *strings.Builder) {
	fmt.Fprintf(b, "\n## [%s.NAME]\n\n%s See [handlers.md](handlers.md). A reload applies all keys to pods that are created from then on.\n"+
		"Only engine `native` uses them.\n\n| key | meaning |\n|---|---|\n", handlersKey, handlersHelp)
	for _, field := range handlerFields("NAME", &Handler{}) {
		help := field.Help
		if len(field.OneOf) > 0 {
			help += " " + field.choice() + " `" + strings.Join(field.OneOf, "`, `") + "`."
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", field.Key, help)
	}
}

// handlersHelp says what the table of handlers is.
const handlersHelp = "Runtime handlers: a RuntimeClass names one by its field handler."
