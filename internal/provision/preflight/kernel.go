package preflight

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// sysctls are what kubeadm reads below /proc/sys.
func sysctls(_ context.Context, s *survey) error {
	for _, want := range []struct {
		key, path string
		who       Who
		note      string
	}{
		{"net.ipv4.ip_forward", "net-ipv4-ip_forward", Both, ""},
		{"net.bridge.bridge-nf-call-iptables", "net-bridge-bridge-nf-call-iptables", Nobody, "; before 1.30 it refused"},
	} {
		now, err := s.host.Kernel().Sysctl(want.key)
		module := ""
		switch {
		case errors.Is(err, errs.NotFound):
			now, module = "not there", "modprobe br_netfilter; "
		case err != nil:
			return err
		}
		if now != "1" {
			s.add("FileContent--proc-sys-"+want.path, want.who, fmt.Sprintf("%s is %s%s", want.key, now, want.note),
				fmt.Sprintf("%ssysctl -w %s=1, and a file in /etc/sysctl.d; kernel.defaultSysctls of the node file sets it", module, want.key))
		}
	}
	return nil
}

// swap is what a kubelet must be told to live with.
func swap(_ context.Context, s *survey) error {
	on, err := s.host.Kernel().Swaps()
	if err == nil && len(on) > 0 {
		s.add("Swap", Nobody, "swap is on ("+list(on)+"), and a kubelet that is told nothing of it does not start",
			"kernel.swap: off in the node file; or failSwapOn: false in the KubeletConfiguration, with cgroup v2")
	}
	return err
}

// options of the kernel that kubeadm wants, by the cgroups of the machine. One of the
// names that stand together is enough.
func options(unified bool) (required, optional []string) {
	required = []string{
		"NAMESPACES", "NET_NS", "PID_NS", "IPC_NS", "UTS_NS", "CPUSETS", "MEMCG", "INET", "EXT4_FS", "PROC_FS",
		"NETFILTER_XT_TARGET_REDIRECT IP_NF_TARGET_REDIRECT", "NETFILTER_XT_MATCH_COMMENT", "FAIR_GROUP_SCHED",
		"CGROUPS", "CGROUP_PIDS", "CGROUP_SCHED",
	}
	if unified {
		required = append(required, "CGROUP_BPF")
	} else {
		required = append(required, "CGROUP_CPUACCT", "CGROUP_DEVICE", "CGROUP_FREEZER")
	}
	return required, []string{"OVERLAY_FS OVERLAYFS_FS", "CFS_BANDWIDTH", "SECCOMP", "SECCOMP_FILTER", "CGROUP_HUGETLB"}
}

// kernelConfig looks at the release of the kernel and at what it was made with.
func kernelConfig(ctx context.Context, s *survey) error {
	said, err := text(s.host, "/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	release := strings.TrimSpace(said)
	if release != "" && !regexp.MustCompile(`^(5\.(4|10|15)\.|([6-9]|[1-9]\d+)\.)`).MatchString(release) {
		s.add("SystemVerification", Nobody, "kernel "+release+" is none that it knows: 5.4, 5.10, 5.15, and 6 or newer", "boot a newer kernel")
	}
	config, at, err := s.readKernelConfig(ctx, release)
	if err != nil {
		return err
	}
	if config == nil {
		s.add("SystemVerification", Both, "the kernel's configuration is not there: neither /proc/config.gz nor /boot/config-"+release+" is, and there is no module configs",
			"install the package that has it, or --ignore-preflight-errors=SystemVerification")
		return nil
	}
	mount, err := cgroupMount(s.host)
	if err != nil {
		return err
	}
	required, optional := options(mount.unified)
	if without := unset(config, required); len(without) > 0 {
		s.add("SystemVerification", Both, fmt.Sprintf("the kernel was made without %s (%s)", list(without), at), "boot a kernel of the distribution")
	}
	if without := unset(config, optional); len(without) > 0 {
		s.add("SystemVerification", Nobody, fmt.Sprintf("the kernel was made without %s (%s)", list(without), at), "boot a kernel of the distribution, if pods need it")
	}
	return nil
}

// unset lists what of wanted the configuration has not, by its first name.
func unset(config map[string]bool, wanted []string) []string {
	var without []string
	for _, names := range wanted {
		either := strings.Fields(names)
		if !slices.ContainsFunc(either, func(name string) bool { return config["CONFIG_"+name] }) {
			without = append(without, "CONFIG_"+either[0])
		}
	}
	return without
}

// readKernelConfig reads what is built in or a module; nil where nobody tells.
func (s *survey) readKernelConfig(ctx context.Context, release string) (config map[string]bool, at string, err error) {
	for _, name := range []string{
		"/proc/config.gz", "/boot/config-" + release, "/usr/src/linux-" + release + "/.config", "/usr/src/linux/.config",
		"/usr/lib/modules/" + release + "/config", "/lib/modules/" + release + "/config", "/usr/lib/ostree-boot/config-" + release,
		"/usr/lib/kernel/config-" + release, "/usr/src/linux-headers-" + release + "/.config", "/lib/modules/" + release + "/build/.config",
	} {
		r, err := s.host.Files().Open(name)
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return nil, name, fmt.Errorf("cannot read %s: %w", name, err)
		}
		config, err := parseConfig(r, strings.HasSuffix(name, ".gz"))
		if err = errors.Join(err, r.Close()); err != nil {
			return nil, name, fmt.Errorf("cannot read %s: %w", name, err)
		}
		return config, name, nil
	}
	if state, err := s.host.Kernel().Module("configs"); err == nil && state == provision.ModuleAvailable {
		return map[string]bool{}, "", fmt.Errorf("it is in the module configs, which kubeadm loads: %w", errs.Unsupported)
	}
	return nil, "", ctx.Err()
}

func parseConfig(r io.Reader, packed bool) (map[string]bool, error) {
	if packed {
		unpacked, err := gzip.NewReader(r)
		if err != nil {
			return nil, err
		}
		r = unpacked
	}
	data, err := io.ReadAll(io.LimitReader(r, readLimit))
	if err != nil {
		return nil, err
	}
	config := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.HasPrefix(name, "CONFIG_") && (value == "y" || value == "m") {
			config[name] = true
		}
	}
	return config, nil
}

// cgroupRoot is where cgroups are mounted, and in which version.
type cgroupRoot struct {
	path    string
	unified bool
}

// cgroupMount looks as kubeadm does: at /sys/fs/cgroup first.
func cgroupMount(host provision.Host) (cgroupRoot, error) {
	const usual = "/sys/fs/cgroup"
	mounts, err := host.Kernel().Mounts()
	if err != nil {
		return cgroupRoot{}, err
	}
	found := cgroupRoot{}
	for _, m := range mounts {
		switch {
		case m.Path == usual && m.Type == "tmpfs":
			return cgroupRoot{usual, !provision.Exists(host.Files(), usual+"/memory")}, nil
		case m.Path == usual:
			return cgroupRoot{usual, m.Type == "cgroup2"}, nil
		case m.Type == "cgroup2":
			return cgroupRoot{m.Path, true}, nil
		case m.Type == "cgroup" && found.path == "":
			found.path = m.Path
		}
	}
	return found, nil
}

// CgroupV1 reports whether a kubelet of the machine finds cgroup v1; no where the machine does not
// run, or does not tell.
func CgroupV1(host provision.Host) bool {
	if !host.Live() {
		return false
	}
	mount, err := cgroupMount(host)
	return err == nil && mount.path != "" && !mount.unified
}

// cgroups looks for the controllers.
func cgroups(_ context.Context, s *survey) error {
	mount, err := cgroupMount(s.host)
	if err != nil {
		return err
	}
	if mount.path == "" {
		s.add("SystemVerification", Both, "no cgroups are mounted", "mount cgroup2 on /sys/fs/cgroup; systemd does at boot")
		return nil
	}
	var have, required []string
	if mount.unified {
		said, err := text(s.host, mount.path+"/cgroup.controllers")
		if err != nil {
			return err
		}
		have, required = strings.Fields(said), []string{"cpu", "cpuset", "memory", "pids"} // freezer and devices are the kernel's own there
	} else {
		if have, err = controllersOf(s.host); err != nil {
			return err
		}
		required = []string{"cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids"}
		s.oldCgroups()
	}
	if without := missing(required, have); len(without) > 0 {
		s.add("SystemVerification", Both, "the cgroup controllers "+list(without)+" are missing", "enable them on the kernel's command line: cgroup_enable=…, and no cgroup_disable")
	}
	return nil
}

// controllersOf are the controllers of cgroup v1.
func controllersOf(host provision.Host) ([]string, error) {
	said, err := text(host, "/proc/cgroups")
	if err != nil {
		return nil, err
	}
	var have []string
	for line := range strings.Lines(said) {
		if words := strings.Fields(line); len(words) >= 4 && !strings.HasPrefix(line, "#") && words[3] != "0" {
			have = append(have, words[0])
		}
	}
	return have, nil
}

// oldCgroups: from 1.35 on a kubelet does not start on cgroup v1 unless told to.
func (s *survey) oldCgroups() {
	who := Nobody
	if s.version.atLeast(1, 35) && !s.joined { // the kubelet of a node has its configuration
		who = Both
	}
	s.add("SystemVerification", who, "the machine has cgroup v1, and a kubelet from 1.35 on does not start with it",
		"boot with systemd.unified_cgroup_hierarchy=1; or have `berth node kubeadm` write the configuration: it sets failCgroupV1 and ignores SystemVerification")
}
