package node

import (
	"path"
	"strings"

	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/node/runtimeconf"
)

// runtime has the facts of a runtime by its name, with the node file's choices.
type runtime struct {
	name string
	// unit is its main unit, criUnit the one that serves CRI: another one for docker.
	unit, criUnit string
	// packages bring it, binary is its daemon.
	packages []distro.Package
	binary   string
	// socket serves CRI; empty for docker without a kubelet.
	socket string
	// config is the file that berth writes, registryDir the directory of registry settings, certDir
	// the directory of certificates that the runtime finds by path.
	config, registryDir, certDir string
	// optionsVar is the variable of the unit that has the command line's options.
	optionsVar string
	// version decides the configuration; zero if unknown.
	version nodefile.Version
	// packaged is true if berth does not own the unit file: a package, an immutable system or the
	// user does.
	packaged bool
}

// runtimeOf resolves the runtime of a node file.
func runtimeOf(n *nodefile.Node, f facts.Facts) runtime {
	rt := map[string]runtime{
		"berth": {
			unit: facts.BerthUnit, binary: "berth", socket: "/run/berth/berth.sock",
			config: berthConfigFile, registryDir: "/etc/berth/certs.d",
		},
		"containerd": {
			unit: "containerd.service", binary: "containerd", socket: "/run/containerd/containerd.sock",
			packages: []distro.Package{distro.Containerd, distro.Runc},
			config:   "/etc/containerd/config.toml", registryDir: "/etc/containerd/certs.d",
		},
		"crio": {
			unit: "crio.service", binary: "crio", socket: "/var/run/crio/crio.sock",
			packages: []distro.Package{distro.CRIO, distro.Crun},
			config:   "/etc/crio/crio.conf.d/10-berth-node.conf", certDir: "/etc/containers/certs.d",
		},
		"docker": {
			unit: "docker.service", binary: "dockerd", packages: []distro.Package{distro.Docker, distro.DockerCLI},
			config: "/etc/docker/daemon.json", certDir: "/etc/docker/certs.d",
		},
	}[n.Runtime.Name]
	rt.name = n.Runtime.Name
	rt.criUnit = rt.unit
	if n.BerthOverDocker() {
		rt.criUnit, rt.socket = facts.BerthUnit, "/run/berth/berth.sock"
	}
	rt.optionsVar = strings.ToUpper(rt.name) + "_OPTIONS"
	if n.Runtime.Socket != "" {
		rt.socket = n.Runtime.Socket
	}
	if rt.name == "containerd" && f.Distro.Family == "flatcar" {
		rt.config = "/etc/containerd/config.toml" // the system's own is in /usr/share
	}
	rt.packaged = rt.name != "berth" && len(n.Runtime.Assets) == 0 || n.Runtime.SkipInstall || rt.name != "berth" && f.Distro.Immutable
	rt.version = runtimeVersion(n, f, rt)
	return rt
}

// runtimeVersion is the version that the configuration is written for: the node file's, else the
// installed version or the one to install.
func runtimeVersion(n *nodefile.Node, f facts.Facts, rt runtime) nodefile.Version {
	if v, err := nodefile.ParseVersion(n.Runtime.Version); err == nil {
		return v
	}
	if n.Runtime.SkipInstall || f.Distro.Immutable {
		if v, known := f.Versions[rt.name]; known {
			return v
		}
		return packagedVersion(f.Distro, rt.name)
	}
	for _, asset := range n.Runtime.Assets {
		if classOf(asset) == rt.name {
			return versionIn(path.Base(asset.Source))
		}
	}
	if len(n.Runtime.Assets) > 0 {
		return nodefile.Version{}
	}
	// What a package manager will install is unknown beforehand, and a second apply must write the
	// same configuration as the first. So the table decides.
	return packagedVersion(f.Distro, rt.name)
}

// packagedVersion is the lowest version of the distribution's package. Newer versions read the same
// configuration.
func packagedVersion(d distro.Distro, name string) nodefile.Version {
	switch name + " " + d.ID + " " + d.Version {
	case "containerd debian 11":
		return nodefile.Version{Major: 1, Minor: 4}
	case "containerd debian 12":
		return nodefile.Version{Major: 1, Minor: 6}
	}
	if name == "containerd" {
		return nodefile.Version{Major: 1, Minor: 7}
	}
	return nodefile.Version{}
}

// versionIn finds the version in a file name such as containerd-2.4.2-linux-amd64.tar.gz.
func versionIn(name string) nodefile.Version {
	for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '-' || r == '_' }) {
		for _, suffix := range []string{".tar", ".tgz", ".zip"} {
			part, _, _ = strings.Cut(part, suffix)
		}
		if v, err := nodefile.ParseVersion(part); err == nil {
			return v
		}
	}
	return nodefile.Version{}
}

// systemdCgroup reports whether the cgroup driver is systemd.
func (b *builder) systemdCgroup() bool { return b.n.Runtime.CgroupDriver != "cgroupfs" }

// model is the input of the runtime's configuration.
func (b *builder) model() runtimeconf.Model {
	rt, net := &b.n.Runtime, &b.n.Network
	m := runtimeconf.Model{
		Version: b.rt.version, Socket: rt.Socket, Root: rt.Root, State: rt.State,
		LogLevel: rt.LogLevel, SandboxImage: rt.SandboxImage, Snapshotter: rt.Snapshotter,
		SystemdCgroup: b.systemdCgroup(), NRI: rt.NRI,
		Handlers: b.handlers(), DefaultHandler: rt.Default,
		CNI:        runtimeconf.CNI{ConfDir: net.ConfDir, BinDirs: b.cniDirs, Builtin: net.Mode == "builtin", Subnets: net.PodCIDRs, MTU: net.MTU},
		Registries: b.n.Registries, Additions: rt.Config.Additions,
	}
	m.SELinux = b.f.SELinux || b.rt.name == "berth" // it looks for its plugins itself
	if rt.SELinux != nil {
		m.SELinux = *rt.SELinux
	}
	m.ServesPods = b.n.BerthOverDocker()
	if rt.CDI.Enabled {
		m.CDISpecDirs = rt.CDI.SpecDirs
	}
	if rt.NVIDIA.Enabled && rt.NVIDIA.Default && b.nvidiaMode() == "handler" {
		m.DefaultHandler = "nvidia"
	}
	if len(b.n.Registries) > 0 || b.rt.name == "containerd" {
		m.RegistryDir = b.rt.registryDir
	}
	if b.kubenetTemplate() {
		m.CNI.Template = kubenetTemplatePath
	}
	if b.n.Logs.Rotate && b.rt.name == "docker" {
		m.Logs = &b.n.Logs
	}
	return m
}
