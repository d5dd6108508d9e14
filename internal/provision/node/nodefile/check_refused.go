package nodefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/registries"
)

// refuse reports fields of one entry that are set and have no meaning there. at is the path of the
// entry, fields its own field names.
func (c checker) refuse(at, why string, fields ...string) {
	for _, field := range fields {
		if c.Has(at + "." + field) {
			c.Fault(at+"."+field, "%s", why)
		}
	}
}

// handlerFields refuses fields of a handler that the runtime has no setting for.
func (c checker) handlerFields(at string, h Handler) {
	switch c.n.Runtime.Name {
	case "docker":
		c.refuse(at, "docker has no such option of a handler; leave this out", "sandbox", "configPath", "root", "snapshotter", "podAnnotations", "privilegedWithoutHostDevices")
		if h.Type == "oci" {
			c.refuse(at, "are those of a shim; leave them out, or set type: shim", "options")
		} else {
			c.refuse(at, "docker finds a shim by its runtimeType; leave this out", "path")
		}
	case "berth":
		c.refuse(at, "berth needs its socket, too; leave this out, and set handlers.NAME.snapshotter and image.snapshotters in runtime.config.additions", "snapshotter")
		if h.Type == "oci" {
			c.refuse(at, "is for a shim; leave this out, or set type: shim", "sandbox", "configPath", "options")
		}
	case "crio":
		c.refuse(at, "crio has no such option of a handler; leave this out", "sandbox", "snapshotter")
		if h.Type == "shim" {
			c.refuse(at, "crio starts a shim by its path; leave this out", "runtimeType")
		}
	case "containerd":
		c.refuse(at, "containerd has no such option of a handler, as each pod has a sandbox container; leave this out", "sandbox")
		if h.Type == "oci" {
			c.refuse(at, "is passed to a shim, and an OCI runtime gets none; leave this out", "configPath")
		} else {
			c.refuse(at, "is for type oci; leave this out", "root")
		}
	}
}

// dockerRegistry refuses what daemon.json cannot say.
func (c checker) dockerRegistry(at string, reg registries.Registry) {
	if reg.Host == "*" {
		c.Fault(at+".host", "docker has no entry for all registries; name each")
	}
	if reg.Host != "docker.io" && len(reg.Mirrors) > 0 {
		c.Fault(at+".mirrors", "docker knows mirrors of docker.io only; leave them out")
	}
	_, server, _ := strings.Cut(reg.Server, "://")
	if reg.Server != "" && strings.TrimSuffix(server, "/") != reg.Host {
		c.Fault(at+".server", "%q: docker asks the registry itself; want http:// or https:// before %s", reg.Server, reg.Host)
	}
	for j, m := range reg.Mirrors {
		at := fmt.Sprintf("%s.mirrors[%d]", at, j)
		if m.OverridePath {
			c.Fault(at+".overridePath", "docker always adds /v2; leave this out")
		}
		c.capabilities(at, m)
	}
}

// capabilities refuses a choice where the runtime asks its mirrors for everything.
func (c checker) capabilities(at string, m registries.Mirror) {
	if slices.Contains(m.Capabilities, "push") || !slices.Contains(m.Capabilities, "pull") || !slices.Contains(m.Capabilities, "resolve") {
		c.conflict(at+".capabilities", true, c.n.Runtime.Name+" asks a mirror to pull and to resolve, and never to push; leave this out")
	}
}

// fileFields refuses what a file of its type cannot have.
func (c checker) fileFields(at string, f File) {
	switch {
	case f.Type == "symlink":
		c.refuse(at, "a symlink has none; leave this out", "mode", "owner", "group")
		c.conflict(at+".ifNotExists", f.Keep, "is for a file with content; leave this out")
	case f.Type == "directory":
		c.conflict(at+".ifNotExists", f.Keep, "is for a file with content; leave this out: a directory keeps what is in it")
	case f.Source != nil:
		c.conflict(at+".ifNotExists", f.Keep, "is for a file with content; leave this out: one with source is known by its digest")
		c.refuse(at, "a file with source is root's; leave this out", "owner", "group")
		c.refuse(at+".source", "the name of the file is in its path; leave this out", "name")
	}
}

// kubeletFields refuses settings without effect, and settings that are given twice.
func (c checker) kubeletFields() {
	k, usual := &c.n.Kubelet, Default().Kubelet.ManifestsDir
	if !k.Enabled && !k.Kubeadm {
		c.refuse("kubelet", "does nothing without kubelet.enabled or kubelet.kubeadm; set one of them, or leave this out",
			"assets", "config", "flags", "bootstrapKubeconfig", "kubeconfig")
		c.conflict("kubelet.staticPodPath", k.ManifestsDir != usual, "does nothing without kubelet.enabled or kubelet.kubeadm; set one of them, or leave this out")
		return
	}
	c.conflict("kubelet.kubeadm", k.Enabled && k.Kubeadm, "conflicts with kubelet.enabled; leave one of them out: either kubeadm writes the kubelet's configuration, or berth does")
	c.conflict("kubelet.staticPodPath", k.Kubeadm && k.ManifestsDir != usual, "conflicts with kubelet.kubeadm, which writes the configuration; leave this out")
	c.conflict("kubelet.bootstrapKubeconfig", k.Bootstrap != "" && k.Kubeconfig == "" && !k.Kubeadm,
		"does nothing alone; set kubelet.kubeconfig, which the kubelet writes by it")
	for at, text := range map[string]string{"kubelet.bootstrapKubeconfig": k.Bootstrap, "kubelet.kubeconfig": k.Kubeconfig} {
		c.word(at, text)
	}
	for _, name := range sortedKeys(k.Flags) {
		at := pathIn("kubelet.flags", name)
		c.word(at, k.Flags[name])
		switch name {
		case "cgroup-driver":
			c.Fault(at, "follows runtime.cgroupDriver; leave this out, and set that")
		case "container-runtime-endpoint":
			c.Fault(at, "follows runtime.socket; leave this out, and set that")
		}
	}
}

// override checks a configuration that replaces berth's own. Fields that other parts of the node
// depend on (unit, kubelet, health check, reset) may be set beside it.
func (c checker) override() {
	rt := &c.n.Runtime
	if rt.Config.Override == "" {
		return
	}
	usual := Default().Runtime
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"logLevel", rt.LogLevel != usual.LogLevel},
		{"sandboxImage", rt.SandboxImage != ""},
		{"handlers", len(rt.Handlers) > 0},
		{"defaultHandler", rt.Default != ""},
		{"snapshotter", rt.Snapshotter != ""},
		{"selinux", rt.SELinux != nil},
		{"cdi", rt.CDI.Enabled != usual.CDI.Enabled || !slices.Equal(rt.CDI.SpecDirs, usual.CDI.SpecDirs)},
		{"nri", rt.NRI != usual.NRI},
		{"gvisor.enabled", rt.GVisor.Enabled},
		{"nvidia.default", rt.NVIDIA.Default},
	} {
		c.conflict("runtime."+field.name, field.set, "conflicts with runtime.config.override, which is the whole file; leave this out, and say it there")
	}
	var top map[string]any
	if rt.Name == "docker" {
		if err := json.Unmarshal([]byte(rt.Config.Override), &top); err != nil {
			c.Fault("runtime.config.override", "is not a JSON object: %v; want the whole of daemon.json", err)
		}
		c.overrideSays(top)
		return
	}
	err := toml.Unmarshal([]byte(rt.Config.Override), &top)
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		line, column := syntax.Position()
		c.Fault("runtime.config.override", "line %d, column %d of it: %v; want the whole configuration in TOML", line, column, err)
	} else if err != nil {
		c.Fault("runtime.config.override", "is no TOML: %v; want the whole configuration", err)
	}
	c.overrideSays(top)
}

// overrideSays checks that the fields that the rest of the node depends on equal the override's
// values.
func (c checker) overrideSays(top map[string]any) {
	rt := &c.n.Runtime
	driver := rt.CgroupDriver
	if driver == "auto" {
		driver = ""
	}
	socket := rt.Socket
	if rt.Name == "berth" && socket != "" {
		socket = "unix://" + socket
	}
	for _, field := range []struct {
		name, value string
		keys        map[string]string
	}{
		{"root", rt.Root, map[string]string{"berth": "root", "containerd": "root", "crio": "crio.root", "docker": "data-root"}},
		{"state", rt.State, map[string]string{"berth": "state", "containerd": "state", "docker": "exec-root"}},
		{"socket", socket, map[string]string{"berth": "listen", "crio": "crio.api.listen"}},
		{"cgroupDriver", driver, map[string]string{"berth": "runtime.cgroup_driver", "crio": "crio.runtime.cgroup_manager"}},
	} {
		key := field.keys[rt.Name]
		if field.value == "" || key == "" || c.Broken("runtime.config.override") {
			continue
		}
		if said := lookUp(top, strings.Split(key, ".")); said != field.value {
			c.Fault("runtime."+field.name, "runtime.config.override has the whole configuration and no %s = %q; say it there, or leave this out", key, field.value)
		}
	}
}

// lookUp finds a value in tables; nil where there is none.
func lookUp(top map[string]any, keys []string) any {
	var value any = top
	for _, key := range keys {
		table, _ := value.(map[string]any)
		value = table[key]
	}
	return value
}
