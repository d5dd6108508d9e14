package runtimeconf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/berthrun/berth/internal/berthtoml"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// Berth writes berth.toml. The keys are those of `berth config default`; a test of
// the command line holds the two together.
func Berth(m Model) (string, error) {
	file := berthFile(m)
	file.Root, file.State = m.Root, m.State
	file.CDISpecDirs = append([]string{}, m.CDISpecDirs...)
	if !m.SELinux {
		file.SELinux = "off"
	}
	if m.RegistryDir != "" {
		file.RegistryDirs = []string{m.RegistryDir}
	}
	for _, h := range m.Handlers {
		file.Handlers = append(file.Handlers, berthHandler(h))
	}
	file.DefaultHandler = m.DefaultHandler
	top := file.Table()
	if err := add(top, m.Additions); err != nil {
		return "", err
	}
	return render(top)
}

func berthHandler(h nodefile.Handler) berthtoml.Handler {
	handler := berthtoml.Handler{
		Name: h.Name, Kind: h.Type, Path: cmp.Or(h.Path, h.RuntimeType), Root: h.Root, Sandbox: h.Sandbox,
		PodAnnotations: h.PodAnnotations, PrivilegedWithoutHostDevices: h.PrivilegedWithoutHost,
	}
	for _, name := range slices.Sorted(maps.Keys(h.Options)) {
		handler.Options = append(handler.Options, fmt.Sprintf("%s=%v", name, h.Options[name]))
	}
	if h.ConfigPath != "" {
		handler.Options = append(handler.Options, "ConfigPath="+h.ConfigPath)
	}
	return handler
}

// BerthOverDocker writes the berth.toml of a berth that serves CRI over docker. Registries, CDI,
// SELinux and Additions are docker's: Docker writes them.
func BerthOverDocker(m Model) (string, error) {
	file := berthFile(m)
	file.Engine = "docker"
	return render(file.Table())
}

// berthFile has the keys that do not depend on the engine.
func berthFile(m Model) berthtoml.File {
	file := berthtoml.File{
		Socket: m.Socket, LogLevel: m.LogLevel,
		Network:      berthtoml.Network{Mode: "cni", ConfDir: m.CNI.ConfDir, BinDirs: m.CNI.BinDirs},
		CgroupDriver: "cgroupfs",
	}
	if m.CNI.Builtin {
		file.Network.Mode, file.Network.Subnets, file.Network.MTU = "builtin", m.CNI.Subnets, m.CNI.MTU
	}
	if m.SystemdCgroup {
		file.CgroupDriver = "systemd"
	}
	return file
}
