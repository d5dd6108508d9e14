package runtimeconf

// Berth writes berth.toml. The keys are those of `berth config default`; a test of
// the command line holds the two together.
func Berth(m Model) (string, error) {
	top := table{}
	if m.Socket != "" {
		top["listen"] = "unix://" + m.Socket
	}
	setText(top, "root", m.Root)
	setText(top, "state", m.State)
	setText(sub(top, "log"), "level", m.LogLevel)
	network := sub(top, "network")
	network["mode"] = "cni"
	setText(network, "conf_dir", m.CNI.ConfDir)
	setList(network, "bin_dirs", m.CNI.BinDirs)
	if m.CNI.Builtin {
		network["mode"] = "builtin"
		setList(network, "subnets", m.CNI.Subnets)
		if m.CNI.MTU > 0 {
			network["mtu"] = m.CNI.MTU
		}
	}
	sub(top, "runtime")["cgroup_driver"] = "cgroupfs"
	if m.SystemdCgroup {
		sub(top, "runtime")["cgroup_driver"] = "systemd"
	}
	if !m.SELinux {
		sub(top, "runtime")["selinux"] = "off"
	}
	sub(top, "runtime")["cdi_spec_dirs"] = append([]string{}, m.CDISpecDirs...)
	if m.RegistryDir != "" {
		sub(top, "image")["registry_config_dirs"] = []string{m.RegistryDir}
	}
	prune(top)
	if err := add(top, m.Additions); err != nil {
		return "", err
	}
	return render(top)
}
