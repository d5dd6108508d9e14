package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/cniconf"
)

// cgroups checks that the limits of containers can be applied.
func cgroups(_ context.Context, m *Machine, r *doctor.Report) error {
	mounts, err := m.host.Kernel().Mounts()
	if err != nil {
		return err
	}
	v1, unified := false, ""
	for _, mount := range mounts {
		v1 = v1 || mount.Type == "cgroup"
		if mount.Type == "cgroup2" && (unified == "" || mount.Path == "/sys/fs/cgroup") {
			unified = mount.Path
		}
	}
	if !v1 && unified == "" {
		r.Add(problem, "/sys/fs/cgroup", "no cgroup file system is mounted: no container starts", "mount -t cgroup2 cgroup2 /sys/fs/cgroup; an init system does it at boot")
		return nil
	}
	have := map[string]bool{}
	at := "/proc/cgroups"
	if v1 {
		data, err := read(m.host, at)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			if words := strings.Fields(line); len(words) == 4 && words[3] == "1" {
				have[words[0]] = true
			}
		}
	} else {
		at = unified + "/cgroup.controllers"
		data, err := read(m.host, at)
		if err != nil {
			return err
		}
		for _, controller := range strings.Fields(string(data)) {
			have[controller] = true
		}
	}
	for _, controller := range []string{"cpu", "memory", "pids", "cpuset"} {
		level := problem
		if controller == "cpuset" {
			level = warning // few pods have CPUs of their own
		}
		if !have[controller] {
			r.Add(level, controller, fmt.Sprintf("the cgroup controller %s is off (%s): limits of containers that need it are refused", controller, at),
				fmt.Sprintf("cgroup_enable=%s on the kernel's command line, without cgroup_disable=%[1]s, and a reboot", controller))
		}
	}
	if m.Berth.CgroupDriver == "systemd" && !provision.Exists(m.host.Files(), "/run/systemd/system") {
		r.Add(problem, "cgroup driver", "runtime.cgroup_driver is systemd ("+m.Berth.File+"), and systemd is not pid 1: no container starts", `cgroup_driver = "auto" in `+m.Berth.File)
	}
	return nil
}

// securityModules compares the kernel's security modules with the configuration.
func securityModules(_ context.Context, m *Machine, r *doctor.Report) error {
	const profiles = "/sys/kernel/security/apparmor/profiles"
	enabled, _ := read(m.host, "/sys/module/apparmor/parameters/enabled") // not there: no AppArmor
	if strings.HasPrefix(string(enabled), "Y") && m.Berth.AppArmor != "off" {
		if want := m.Berth.AppArmorProfile; want != "" {
			loaded, err := read(m.host, profiles)
			if err != nil {
				return err
			}
			found := false
			for line := range strings.Lines(string(loaded)) {
				found = found || strings.HasPrefix(line, want+" (")
			}
			if !found {
				r.Add(problem, want, fmt.Sprintf("runtime.apparmor_profile is %s (%s), which is not loaded: no container without a profile of its own starts", want, m.Berth.File),
					"apparmor_parser -r FILE loads it; or remove the key")
			}
		} else if !provision.Exists(m.host.Files(), "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser", "/usr/bin/apparmor_parser") {
			r.Add(warning, "apparmor_parser", "AppArmor is on, and apparmor_parser is not installed: containers that ask for no profile run without one, and those that demand runtime/default do not start",
				"install the package apparmor (Debian, Ubuntu) or apparmor-parser (openSUSE)")
		}
	}
	enforcing, _ := read(m.host, "/sys/fs/selinux/enforce") // not there: no SELinux
	if strings.TrimSpace(string(enforcing)) == "1" && m.Berth.SELinux == "off" {
		r.Add(warning, "SELinux", fmt.Sprintf("SELinux enforces, and runtime.selinux is off (%s): containers are not kept apart by labels, and may be denied files", m.Berth.File), `selinux = "auto" in `+m.Berth.File)
	}
	return nil
}

// modules checks for modules of the pods' network.
func modules(_ context.Context, m *Machine, r *doctor.Report) error {
	wanted := []string{"veth"}
	if m.Berth.Network != "cni" {
		wanted = append(wanted, "bridge", "nf_tables")
	}
	if !m.listsModules() {
		wanted = nil // what is built in cannot be told from what is absent
	}
	for _, name := range wanted {
		state, err := m.host.Kernel().Module(name)
		if err != nil {
			return err
		}
		if state == provision.ModuleAbsent {
			r.Add(problem, name, "the kernel has no module "+name+": pods have no network", "install the modules of the running kernel, or boot the one that is installed")
		}
	}
	if _, ok := m.ofKubelet(); !ok {
		return nil
	}
	_, err := m.host.Kernel().Sysctl("net.bridge.bridge-nf-call-iptables")
	if errors.Is(err, errs.NotFound) {
		r.Add(warning, "br_netfilter", "the module br_netfilter is not loaded: Services may not work from pods on a bridge (kube-proxy with iptables)",
			"modprobe br_netfilter, and a file in /etc/modules-load.d")
		return nil
	}
	return err
}

// listsModules reports whether the machine has the list of the running kernel's modules.
func (m *Machine) listsModules() bool {
	release, err := read(m.host, "/proc/sys/kernel/osrelease")
	dir := "/lib/modules/" + strings.TrimSpace(string(release))
	return err == nil && provision.Exists(m.host.Files(), dir+"/modules.builtin", dir+"/modules.dep")
}

// kernelLimits checks limits that many pods reach, and whose errors do not name them.
func kernelLimits(_ context.Context, m *Machine, r *doctor.Report) error {
	for _, want := range []struct {
		key         string
		least, good int64
		why         string
	}{
		{"fs.mount-max", 10000, 100000, "no space left on device at the mount of a container's volume, when many pods run"},
		{"fs.nr_open", 65536, 1048576, "containers cannot have the limit of open files that berth gives them"},
		{"user.max_net_namespaces", 256, 65536, "no space left on device when a pod starts"},
		{"user.max_mnt_namespaces", 1024, 65536, "no space left on device when a container starts"},
		{"user.max_pid_namespaces", 1024, 65536, "no space left on device when a container starts"},
		{"kernel.keys.root_maxkeys", 1000, 1000000, "disk quota exceeded when a container starts: each has a session keyring"},
	} {
		if now, ok := m.sysctl(want.key); ok && now < want.least {
			r.Add(warning, want.key, fmt.Sprintf("%s is %d: %s", want.key, now, want.why), setSysctl(want.key, want.good))
		}
	}
	const forwarding = "net.ipv6.conf.all.forwarding"
	six := slices.ContainsFunc(prefixes(m.Berth.Subnets), func(p netip.Prefix) bool { return p.Addr().Is6() })
	if now, ok := m.sysctl(forwarding); six && ok && now == 0 {
		r.Add(warning, forwarding, forwarding+" is 0, and network.subnets has one of IPv6: pods reach nothing beyond the node by it", setSysctl(forwarding, 1))
	}
	return nil
}

// otherRuntimes lists runtimes beside berth, and finds a network that they share and that the GC of
// CNI would take from them.
func otherRuntimes(_ context.Context, m *Machine, r *doctor.Report) error {
	var others []string
	berth := false
	for _, a := range m.served() {
		if a.berth() {
			berth = true
			continue
		}
		others = append(others, a.name+" at "+a.socket)
	}
	if len(others) == 0 {
		return nil
	}
	list := strings.Join(others, ", ")
	k, ok := m.ofKubelet()
	if berth && ok && k.Endpoint.Text != "" && !m.usesBerth(k) {
		r.Add(warning, k.Endpoint.Text, fmt.Sprintf("berth runs, and the kubelet talks to %s (%s): its pods are not berth's", k.Endpoint.Text, k.Endpoint.From),
			"containerRuntimeEndpoint: unix://"+m.Berth.Socket+" in "+orDefault(k.Config)+" moves the node to berth, after its pods are drained; or stop berth")
	} else {
		r.Add(finding.OK, "", "beside berth: "+list, "")
	}
	if m.Berth.Network != "cni" {
		return nil
	}
	config, err := cniconf.First(m.host.Files(), m.Berth.ConfDir)
	if err != nil || config.File == "" {
		return nil //nolint:nilerr // the check of the network reports it
	}
	data, err := read(m.host, config.File)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	var conf struct {
		CNIVersion string `json:"cniVersion"`
		DisableGC  bool   `json:"disableGC"`
	}
	if json.Unmarshal(data, &conf) == nil && conf.CNIVersion >= "1.1" && !conf.DisableGC {
		r.Add(warning, config.File, fmt.Sprintf("%s (version %s) may be in use by %s as well: berth's GC would release the addresses of the other's pods", config.File, conf.CNIVersion, list),
			`"disableGC": true in `+config.File+", or network.conf_dir of berth's own")
	}
	return nil
}
