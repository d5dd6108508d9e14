package distro

import (
	"maps"
	"strconv"
	"strings"
)

// refusals are the distributions that cannot be served, and why.
func refusals() map[string]string {
	return map[string]string{
		"bottlerocket": "is configured through its own settings API and does not allow another program to write its runtime's configuration",
		"alpine":       "runs OpenRC, and berth's units are systemd's",
		"gentoo":       "usually runs OpenRC, and berth has no table of its packages",
		"artix":        "does not run systemd",
		"devuan":       "does not run systemd",
		"void":         "does not run systemd",
		"nixos":        "is configured by its own language, which would undo what berth writes; use the virtualisation.* options",
		"talos":        "is configured through its own API",
	}
}

func table() map[string]entry {
	return map[string]entry{
		"debian": {distro: debian(), versions: []string{"11", "12", "13"}, adjust: debianRelease},
		"ubuntu": {distro: debian(), versions: []string{"22.04", "24.04", "25.10", "26.04"}},

		"rhel":      {distro: rhel(), versions: []string{"8", "9", "10"}, adjust: rhelRelease},
		"centos":    {distro: rhel(), versions: []string{"9", "10"}, adjust: rhelRelease},
		"rocky":     {distro: rhel(), versions: []string{"8", "9", "10"}, adjust: rhelRelease},
		"almalinux": {distro: rhel(), versions: []string{"8", "9", "10"}, adjust: rhelRelease},
		"fedora":    {distro: fedora(), versions: []string{"41", "42", "43", "44"}},
		"amzn":      {distro: amazon(), versions: []string{"2023"}},

		"opensuse-leap":       {distro: suse(), versions: []string{"15.6", "16.0"}},
		"opensuse-tumbleweed": {distro: suse()},

		"flatcar": {distro: Distro{
			Family: "flatcar", Immutable: true,
			BinDir: "/opt/bin", LicenseDir: "/opt/share/licenses", CNIBinDir: "/opt/cni/bin",
		}},
		"cos": {distro: Distro{
			Family: "cos", Immutable: true,
			BinDir: "/home/kubernetes/bin", LicenseDir: "/home/kubernetes/licenses", CNIBinDir: "/home/kubernetes/bin",
		}},
	}
}

// base is what mutable distributions have in common.
func base(family, manager string, packages map[Package]string) Distro {
	return Distro{
		Family: family, Manager: manager,
		BinDir: "/usr/local/bin", LicenseDir: "/usr/local/share/licenses", CNIBinDir: "/opt/cni/bin",
		packages: packages,
	}
}

func debian() Distro {
	d := base("debian", "apt", map[Package]string{
		Containerd: "containerd", Runc: "runc", Crun: "crun", Docker: "docker.io",
		CNIPlugins: "containernetworking-plugins", Nftables: "nftables", Iptables: "iptables", Conntrack: "conntrack",
		Socat: "socat", Ethtool: "ethtool", Seccomp: "libseccomp2", UtilLinux: "util-linux", Kmod: "kmod",
		IPRoute: "iproute2", Logrotate: "logrotate", LibAppArmor: "libapparmor1", Mount: "mount",
	})
	d.CNIPackageDir = "/usr/lib/cni"
	return d
}

// debianRelease: from 13 on docker's client is a package of its own.
func debianRelease(d *Distro) {
	major, _, _ := strings.Cut(d.Version, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= 13 {
		d.packages[DockerCLI] = "docker-cli"
	}
}

func rhel() Distro {
	d := base("rhel", "dnf", map[Package]string{
		Runc: "runc", Crun: "crun", CNIPlugins: "containernetworking-plugins", Nftables: "nftables",
		Iptables: "iptables-nft", Conntrack: "conntrack-tools", Socat: "socat", Ethtool: "ethtool",
		Seccomp: "libseccomp", SELinux: "container-selinux", UtilLinux: "util-linux", Kmod: "kmod",
		IPRoute: "iproute", Logrotate: "logrotate",
	})
	d.CNIPackageDir, d.SELinux = "/usr/libexec/cni", true
	return d
}

// rhelRelease: version 8 still calls the nft front end iptables, and 10 dropped runc.
func rhelRelease(d *Distro) {
	switch {
	case d.Version == "8" || len(d.Version) > 1 && d.Version[:2] == "8.":
		d.packages[Iptables] = "iptables"
	case len(d.Version) > 1 && d.Version[:2] == "10":
		delete(d.packages, Runc)
	}
}

func fedora() Distro {
	d := rhel()
	maps.Copy(d.packages, map[Package]string{Containerd: "containerd", CRIO: "cri-o", Docker: "moby-engine"})
	return d
}

func amazon() Distro {
	d := rhel()
	maps.Copy(d.packages, map[Package]string{Containerd: "containerd", Docker: "docker", CNIPlugins: "cni-plugins"})
	delete(d.packages, Crun)
	return d
}

func suse() Distro {
	d := base("suse", "zypper", map[Package]string{
		Containerd: "containerd", Runc: "runc", Crun: "crun", CRIO: "cri-o", Docker: "docker",
		CNIPlugins: "cni-plugins", Nftables: "nftables", Iptables: "iptables", Conntrack: "conntrack-tools",
		Socat: "socat", Ethtool: "ethtool", Seccomp: "libseccomp2", UtilLinux: "util-linux", Kmod: "kmod",
		IPRoute: "iproute2", Logrotate: "logrotate", LibAppArmor: "libapparmor1", SELinux: "container-selinux",
	})
	d.CNIPackageDir = "/usr/lib/cni"
	return d
}
