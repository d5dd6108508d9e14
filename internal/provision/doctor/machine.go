package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/cniconf"
)

// cniDir is where other runtimes read their configuration, binDirs where they find plugins.
const cniDir = "/etc/cni/net.d"

func binDirs() []string { return []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"} }

// network checks that each configured CNI plugin exists. berth has some in its process.
func network(_ context.Context, m *Machine, r *doctor.Report) error {
	bins := binDirs()
	var inProcess []string
	if m.onlyBerth() {
		if m.Berth.Network != "cni" {
			r.Add(finding.OK, "", fmt.Sprintf("berth's network is %s: no CNI configuration is in use", m.Berth.Network), "")
			return nil
		}
		bins, inProcess = m.Berth.BinDirs, m.Berth.InProcess
	}
	config, err := cniconf.First(m.host.Files(), m.cniDir())
	if errors.Is(err, errs.Invalid) {
		r.Add(problem, config.File, errs.Message(err), "correct or remove it")
		return nil
	}
	if err == nil && config.File != "" && len(config.Plugins) == 0 {
		r.Add(problem, config.File, config.File+" names no plugin: no pod has a network", "correct or remove it")
	}
	for _, needs := range config.Needs {
		if !provision.Exists(m.host.Files(), needs.File) {
			r.Add(problem, needs.File, fmt.Sprintf("the CNI plugin %s of %s reads %s, which is not there: no pod has a network", needs.Plugin, config.File, needs.File),
				"the network's own pod on this node writes it: its log says why it has not; if that network is gone, remove "+config.File)
		}
	}
	for _, plugin := range config.Missing(m.host.Files(), bins) {
		if slices.Contains(inProcess, plugin) {
			continue
		}
		r.Add(problem, plugin, fmt.Sprintf("%s wants the CNI plugin %s, which is not in %s", config.File, plugin, oneOf(bins)),
			installPlugin(plugin, config.File))
	}
	return err
}

// cniDir is the directory of the CNI configuration in use.
func (m *Machine) cniDir() string {
	if m.onlyBerth() {
		return cmp.Or(m.Berth.ConfDir, cniDir)
	}
	return cniDir
}

// installPlugin says where a CNI plugin comes from.
func installPlugin(plugin, file string) string {
	if slices.Contains(cniconf.Reference(), plugin) {
		return "install it: the package containernetworking-plugins, or network.plugins of the node file"
	}
	return "install it: the network's own pod on this node does; if that network is gone, remove " + file
}

// oneOf joins names: "a, b or c".
func oneOf(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// kernel checks what pods need of the kernel.
func kernel(_ context.Context, m *Machine, r *doctor.Report) error {
	overlay, err := m.host.Kernel().Module("overlay")
	if err != nil {
		return err
	}
	if overlay == provision.ModuleAbsent {
		r.Add(problem, "overlay", "the kernel has no overlay file system", "install the modules of the running kernel, or boot the one that is installed")
	}
	for _, want := range []struct {
		key, value string
		level      finding.Level
		why        string
	}{
		{"net.ipv4.ip_forward", "1", problem, "pods reach nothing beyond the node"},
		{"net.bridge.bridge-nf-call-iptables", "1", warning, "Services may not work from pods on a bridge (kube-proxy with iptables)"},
	} {
		now, err := m.host.Kernel().Sysctl(want.key)
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if now != want.value {
			r.Add(want.level, want.key, fmt.Sprintf("%s is %s: %s", want.key, now, want.why), setSysctl(want.key, want.value))
		}
	}
	return nil
}

// setSysctl is the advice to set a sysctl, now and at each boot.
func setSysctl(key string, value any) string {
	return fmt.Sprintf("sysctl -w %s=%v, and a file in /etc/sysctl.d", key, value)
}

// spareWatchers is how many inotify instances a runtime, a kubelet and a pod or two need.
const spareWatchers = 16

const inotifyLimit = "fs.inotify.max_user_instances"

// watchers checks the inotify instances, which all containers of a host share.
func watchers(_ context.Context, m *Machine, r *doctor.Report) error {
	for _, want := range []struct {
		key   string
		least int64
		why   string
	}{
		{inotifyLimit, 512, `"too many open files" in pods that watch files`},
		{"fs.inotify.max_user_watches", 65536, `"no space left on device" in pods that watch many files`},
	} {
		if now, ok := m.sysctl(want.key); ok && now < want.least {
			r.Add(warning, want.key, fmt.Sprintf("%s is %d: %s", want.key, now, want.why), setSysctl(want.key, want.least))
		}
	}
	spare, err := m.host.Kernel().Inotify(spareWatchers)
	if err != nil || spare == spareWatchers {
		return err
	}
	evidence := fmt.Sprintf("root can watch files %d more times: a containerd that starts without runs without CRI, and a kubelet does not start", spare)
	if who := topWatchers(m.host.Files()); who != "" {
		evidence += "; most have " + who
	}
	r.Add(problem, inotifyLimit, evidence, setSysctl(inotifyLimit, 8192))
	return nil
}

// topWatchers names the three programs with the most inotify instances, and their numbers.
func topWatchers(files provision.Files) string {
	counts := map[string]int{}
	pids, err := files.ReadDir("/proc")
	if err != nil {
		return ""
	}
	for _, pid := range pids {
		fds, err := files.ReadDir("/proc/" + pid + "/fd")
		if err != nil {
			continue // no process, or gone
		}
		for _, fd := range fds {
			if info, err := files.Stat("/proc/" + pid + "/fd/" + fd); err == nil && info.Target == "anon_inode:inotify" {
				name, _ := readFiles(files, "/proc/"+pid+"/comm")
				counts[strings.TrimSpace(string(name))]++
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	var list []string
	for _, name := range names[:min(len(names), 3)] {
		list = append(list, fmt.Sprintf("%s (%d)", name, counts[name]))
	}
	return strings.Join(list, ", ")
}

// swap is a fault unless the kubelet is configured to accept it.
func swap(_ context.Context, m *Machine, r *doctor.Report) error {
	swaps, err := m.host.Kernel().Swaps()
	if err != nil {
		return err
	}
	k, _ := m.kubelet() // the check of the kubelet reports its error
	if len(swaps) > 0 && k.There() && (k.FailSwapOn == nil || *k.FailSwapOn) {
		r.Add(problem, swaps[0], "swap is on ("+strings.Join(swaps, ", ")+") and the kubelet does not start with it",
			"swapoff -a, and no swap in /etc/fstab (kernel.swap: off in the node file); or failSwapOn: false in "+orDefault(k.Config))
	}
	return nil
}
