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
	dir, bins := cniDir, binDirs()
	var inProcess []string
	if m.onlyBerth() {
		if m.Berth.Network != "cni" {
			r.Add(finding.OK, "", fmt.Sprintf("berth's network is %s: no CNI configuration is in use", m.Berth.Network), "")
			return nil
		}
		dir, bins, inProcess = cmp.Or(m.Berth.ConfDir, dir), m.Berth.BinDirs, m.Berth.InProcess
	}
	config, err := cniconf.First(m.host.Files(), dir)
	if errors.Is(err, errs.Invalid) {
		r.Add(problem, config.File, err.Error(), "correct or remove it")
		return nil
	}
	for _, plugin := range config.Missing(m.host.Files(), bins) {
		if slices.Contains(inProcess, plugin) {
			continue
		}
		r.Add(problem, plugin, fmt.Sprintf("%s wants the CNI plugin %s, which is not in %s", config.File, plugin, oneOf(bins)),
			"install it: the package containernetworking-plugins, or network.plugins of the node file")
	}
	return err
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
	}{{inotifyLimit, 512}, {"fs.inotify.max_user_watches", 65536}} {
		if now, ok := m.sysctl(want.key); ok && now < want.least {
			r.Add(warning, want.key, fmt.Sprintf("%s is %d: \"too many open files\" in pods that watch files", want.key, now), setSysctl(want.key, want.least))
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
			"kernel.swap: off in the node file; or failSwapOn: false in "+orDefault(k.Config))
	}
	return nil
}

// resolver checks the file that pods get their name servers from.
func resolver(_ context.Context, m *Machine, r *doctor.Report) error {
	k, _ := m.kubelet() // the check of the kubelet reports its error
	file := cmp.Or(k.ResolvConf.Text, "/etc/resolv.conf")
	data, err := read(m.host, file)
	if errors.Is(err, errs.NotFound) && k.ResolvConf.Text != "" {
		r.Add(problem, file, fmt.Sprintf("resolvConf (%s) names %s, which is not there: the kubelet starts no pod that takes its name servers from the node", k.ResolvConf.From, file),
			"correct resolvConf in "+k.ResolvConf.From+" and restart the kubelet")
		return nil
	}
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	const resolved = "/run/systemd/resolve/resolv.conf"
	if !k.There() && provision.Exists(m.host.Files(), resolved) {
		return nil // berth pod run reads it
	}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" || !strings.HasPrefix(words[1], "127.") && words[1] != "::1" {
			continue
		}
		said, todo := fmt.Sprintf("pods would ask %s (%s), which is themselves", words[1], file), "a name server in "+file+" that pods reach, or dnsConfig in each pod"
		if k.There() {
			said, todo = said+"; CoreDNS ends with \"Loop detected\"", "resolvConf: "+resolved+" in "+orDefault(k.Config)
		}
		r.Add(warning, file, said, todo)
		return nil
	}
	return nil
}

// The kubelet evicts pods below 10 % of its own file system and 15 % of that of images.
const leastFree = 0.15

// disk checks the free space.
func disk(_ context.Context, m *Machine, r *doctor.Report) error {
	dirs := []string{"/var/lib/kubelet", "/var/lib/berth", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/log", "/run"}
	if root := m.Berth.Root; root != "" && !slices.Contains(dirs, root) {
		dirs = append(dirs, root)
	}
	for _, dir := range dirs {
		if _, err := m.host.Files().Stat(dir); err != nil {
			continue
		}
		is, err := m.Space(dir)
		if err != nil {
			return err
		}
		if is.Size > 0 && float64(is.Free) < leastFree*float64(is.Size) {
			r.Add(warning, dir, fmt.Sprintf("%s has %d MiB of %d MiB left", dir, is.Free>>20, is.Size>>20), "the kubelet removes images and evicts pods; make room")
		}
		if is.Files > 0 && float64(is.FilesFree) < leastFree*float64(is.Files) {
			r.Add(warning, dir, fmt.Sprintf("%s has room for %d of %d files left", dir, is.FilesFree, is.Files), "remove small files, images first: crictl rmi --prune")
		}
	}
	return nil
}
