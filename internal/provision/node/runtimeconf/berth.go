package runtimeconf

import "github.com/berthrun/berth/internal/berthtoml"

// Berth writes berth.toml. The keys are those of `berth config default`; a test of
// the command line holds the two together.
func Berth(m Model) (string, error) {
	file := berthtoml.File{
		Socket: m.Socket, Root: m.Root, State: m.State, LogLevel: m.LogLevel,
		Network:      berthtoml.Network{Mode: "cni", ConfDir: m.CNI.ConfDir, BinDirs: m.CNI.BinDirs},
		CgroupDriver: "cgroupfs",
		CDISpecDirs:  append([]string{}, m.CDISpecDirs...),
	}
	if m.CNI.Builtin {
		file.Network.Mode, file.Network.Subnets, file.Network.MTU = "builtin", m.CNI.Subnets, m.CNI.MTU
	}
	if m.SystemdCgroup {
		file.CgroupDriver = "systemd"
	}
	if !m.SELinux {
		file.SELinux = "off"
	}
	if m.RegistryDir != "" {
		file.RegistryDirs = []string{m.RegistryDir}
	}
	top := file.Table()
	if err := add(top, m.Additions); err != nil {
		return "", err
	}
	return render(top)
}
