package node

import (
	"fmt"
	"slices"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/node/runtimeconf"
	"github.com/berthrun/berth/internal/provision/tasks"
)

const (
	runscConfig    = "/etc/containerd/runsc.toml"
	deviceScript   = facts.OwnDir + "/nvidia-dev-char.sh"
	nvidiaUnit     = "berth-nvidia.service"
	nvidiaCDISpec  = "/var/run/cdi/nvidia.yaml"
	nvidiaCDIClass = "nvidia-cdi-refresh.path"
)

// handlers are the user's, and those that gVisor and GPUs bring.
func (b *builder) handlers() []nodefile.Handler {
	all := slices.Clone(b.n.Runtime.Handlers)
	if b.n.Runtime.GVisor.Enabled {
		all = append(all, b.gvisorHandler())
	}
	if b.n.Runtime.NVIDIA.Enabled && b.nvidiaMode() == "handler" {
		all = append(all, nodefile.Handler{Name: "nvidia", Type: "oci", Path: b.n.Runtime.NVIDIA.Runtime, PrivilegedWithoutHost: false})
	}
	return all
}

// gvisorHandler is a shim where the runtime drives shims, else the OCI runtime.
func (b *builder) gvisorHandler() nodefile.Handler {
	if b.hasShims() {
		h := nodefile.Handler{
			Name: "runsc", Type: "shim", RuntimeType: "io.containerd.runsc.v1", ConfigPath: runscConfig,
			Options: map[string]any{"TypeUrl": "io.containerd.runsc.v1.options"},
		}
		if b.rt.name == "berth" {
			h.Sandbox = "runtime"
		}
		return h
	}
	return nodefile.Handler{Name: "runsc", Type: "oci", Path: b.f.Distro.BinDir + "/runsc"}
}

// hasShims reports whether the runtime drives shims of containerd.
func (b *builder) hasShims() bool { return b.rt.name == "containerd" || b.rt.name == "berth" }

// nvidiaMode resolves auto: CDI needs nvidia-ctk to make the specification, and a
// runtime that reads it.
func (b *builder) nvidiaMode() string {
	nv := b.n.Runtime.NVIDIA
	switch {
	case nv.Mode != "auto":
		return nv.Mode
	case b.rt.name == "berth":
		return "cdi"
	case b.f.NvidiaCTK != "" && b.n.Runtime.CDI.Enabled && b.hasCDI() && !nv.Default:
		return "cdi"
	default:
		return "handler"
	}
}

func (b *builder) hasCDI() bool { return runtimeconf.HasCDI(b.rt.name, b.rt.version) }

// checkCDI refuses CDI that is requested explicitly if the runtime has none.
func (b *builder) checkCDI() {
	rt := &b.n.Runtime
	if b.hasCDI() || !rt.CDI.Enabled {
		return
	}
	why := fmt.Sprintf("%s %v has no CDI; want containerd 1.7, docker 25 or newer, or leave this out", b.rt.name, b.rt.version)
	if b.rt.version.IsZero() {
		why = fmt.Sprintf("the version of %s is not known, and docker has CDI from 25 on; set runtime.version", b.rt.name)
	}
	if rt.NVIDIA.Enabled && rt.NVIDIA.Mode == "cdi" {
		b.fault(errs.Unsupported, "runtime.nvidia.mode", "%s", why)
	}
	if !slices.Equal(rt.CDI.SpecDirs, nodefile.Default().Runtime.CDI.SpecDirs) {
		b.fault(errs.Unsupported, "runtime.cdi.specDirs", "%s", why)
	}
}

// devices writes what gVisor and GPUs need in addition to the runtime's configuration.
func (b *builder) devices() {
	b.checkCDI()
	if b.n.Runtime.GVisor.Enabled && b.hasShims() {
		text := fmt.Sprintf("# Made by `berth node` from the node file. Changes here are undone; put them there.\n[runsc_config]\nplatform = %q\n", b.n.Runtime.GVisor.Platform)
		if b.systemdCgroup() {
			text += "systemd-cgroup = \"true\"\n"
		}
		// Read when a pod starts: nothing restarts.
		b.before(tasks.File{M: b.meta("runtime.gvisor"), Path: runscConfig, Content: text})
	}
	if b.n.Runtime.NVIDIA.Enabled {
		b.nvidia()
	}
}

// nvidia makes GPUs survive a `systemctl daemon-reload`: systemd then applies a container's device
// rules again, and finds the devices through /dev/char, where the driver creates no links. With CDI
// a unit also generates the specification at each boot. It is the file that nvidia's own service
// would write. If that service exists, our unit does not run, so no device is described twice.
func (b *builder) nvidia() {
	b.before(tasks.File{M: b.meta("runtime.nvidia"), Path: deviceScript, Mode: 0o755, Content: deviceScriptText})
	service := []string{"Type=oneshot", "RemainAfterExit=yes", "ExecStart=/bin/sh " + deviceScript}
	yes := true
	if b.nvidiaMode() == "cdi" {
		// One node file serves many nodes: without a GPU the tool fails, and the node is fine.
		switch {
		case b.f.NvidiaRefresh:
			b.before(tasks.Unit{M: b.meta("runtime.nvidia"), Name: nvidiaCDIClass, Enable: &yes, Running: tasks.Started})
		case b.f.NvidiaCTK != "":
			service = append(service, "ExecStart=-"+b.f.NvidiaCTK+" cdi generate --output="+nvidiaCDISpec)
		default:
			service = append(service, "ExecStart=-/usr/bin/nvidia-ctk cdi generate --output="+nvidiaCDISpec)
		}
	}
	head := []string{
		"Description=GPUs of NVIDIA for containers", "After=systemd-modules-load.service systemd-udev-settle.service nvidia-persistenced.service",
		beforeRuntimes,
	}
	b.before(tasks.Unit{
		M:    provision.Meta{Why: "runtime.nvidia", Needs: []string{"file " + deviceScript}, Restarts: nil},
		Name: nvidiaUnit, Enable: &yes, Running: tasks.Started,
		Content: unitText(section{"Unit", head}, section{"Service", service}, installed()),
	})
}

const deviceScriptText = `#!/bin/sh
# Made by ` + "`berth node`" + ` from the node file. Changes here are undone; put them there.
# Links /dev/char/MAJOR:MINOR to each GPU device, as udev does for other devices.
set -eu
mkdir -p /dev/char
for device in /dev/nvidia* /dev/nvidia-caps/*; do
	[ -c "$device" ] || continue
	major=$(printf '%d' "0x$(stat -c %t "$device")")
	minor=$(printf '%d' "0x$(stat -c %T "$device")")
	ln -sfn "../${device#/dev/}" "/dev/char/$major:$minor"
done
`
