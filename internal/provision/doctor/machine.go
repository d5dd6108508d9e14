package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/cniconf"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const cniDir = "/etc/cni/net.d"

// network checks that each configured CNI plugin exists.
func network(_ context.Context, d *diagnosis) error {
	config, err := cniconf.First(d.host.Files(), cniDir)
	if errors.Is(err, errs.Invalid) {
		d.add(Problem, err.Error(), "correct or remove it")
		return nil
	}
	for _, plugin := range config.Missing(d.host.Files(), []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}) {
		d.add(Problem, fmt.Sprintf("%s wants the CNI plugin %s, which is not in /opt/cni/bin, /usr/lib/cni or /usr/libexec/cni", config.File, plugin),
			"install it: the package containernetworking-plugins, or network.plugins of the node file")
	}
	return err
}

// kernel checks what pods need of the kernel.
func kernel(_ context.Context, d *diagnosis) error {
	overlay, err := d.host.Kernel().Module("overlay")
	if err != nil {
		return err
	}
	if overlay == provision.ModuleAbsent {
		d.add(Problem, "the kernel has no overlay file system", "install the modules of the running kernel, or boot the one that is installed")
	}
	for _, want := range []struct {
		key, value string
		level      Level
		why        string
	}{
		{"net.ipv4.ip_forward", "1", Problem, "pods reach nothing beyond the node"},
		{"net.bridge.bridge-nf-call-iptables", "1", Warning, "Services may not work from pods on a bridge (kube-proxy with iptables)"},
	} {
		now, err := d.host.Kernel().Sysctl(want.key)
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if now != want.value {
			d.add(want.level, fmt.Sprintf("%s is %s: %s", want.key, now, want.why), fmt.Sprintf("sysctl -w %s=%s, and a file in /etc/sysctl.d", want.key, want.value))
		}
	}
	return nil
}

// spareWatchers is how many inotify instances a runtime, a kubelet and a pod or two need.
const spareWatchers = 16

// watchers checks the inotify instances, which all containers of a host share.
func watchers(_ context.Context, d *diagnosis) error {
	const limit = "fs.inotify.max_user_instances"
	for key, least := range map[string]int{limit: 512, "fs.inotify.max_user_watches": 65536} {
		text, err := d.host.Kernel().Sysctl(key)
		var now int
		if err == nil {
			_, err = fmt.Sscan(text, &now)
		}
		if err == nil && now < least {
			d.add(Warning, fmt.Sprintf("%s is %d: \"too many open files\" in pods that watch files", key, now), fmt.Sprintf("sysctl -w %s=%d, and a file in /etc/sysctl.d", key, least))
		}
	}
	spare, err := d.host.Kernel().Inotify(spareWatchers)
	if err != nil || spare == spareWatchers {
		return err
	}
	evidence := fmt.Sprintf("root can watch files %d more times: a containerd that starts without runs without CRI, and a kubelet does not start", spare)
	if who := topWatchers(d.host.Files()); who != "" {
		evidence += "; most have " + who
	}
	d.add(Problem, evidence, "sysctl -w "+limit+"=8192, and a file in /etc/sysctl.d")
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
func swap(_ context.Context, d *diagnosis) error {
	swaps, err := d.host.Kernel().Swaps()
	if err != nil {
		return err
	}
	if len(swaps) > 0 && d.kubelet.There() && (d.kubelet.FailSwapOn == nil || *d.kubelet.FailSwapOn) {
		d.add(Problem, "swap is on ("+strings.Join(swaps, ", ")+") and the kubelet does not start with it",
			"kernel.swap: off in the node file; or failSwapOn: false in "+orDefault(d.kubelet.Config))
	}
	return nil
}

// resolver checks the file that pods get their name servers from.
func resolver(_ context.Context, d *diagnosis) error {
	file := d.kubelet.ResolvConf.Text
	if file == "" {
		file = "/etc/resolv.conf"
	}
	data, err := read(d.host, file)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if d.kubelet.There() && len(words) >= 2 && words[0] == "nameserver" && (strings.HasPrefix(words[1], "127.") || words[1] == "::1") {
			d.add(Warning, fmt.Sprintf("pods would ask %s (%s), which is themselves; CoreDNS ends with \"Loop detected\"", words[1], file),
				"resolvConf: /run/systemd/resolve/resolv.conf in "+orDefault(d.kubelet.Config))
			return nil
		}
	}
	return nil
}

// The kubelet evicts pods below 10 % of its own file system and 15 % of that of images.
const leastFree = 0.15

// disk checks the free space.
func disk(_ context.Context, d *diagnosis) error {
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/berth", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/log", "/run"} {
		if _, err := d.host.Files().Stat(dir); err != nil {
			continue
		}
		free, err := sysfile.DiskFree(dir)
		if err != nil {
			return err
		}
		size, err := sysfile.SizeOf(dir)
		if err != nil {
			return err
		}
		if size.Bytes > 0 && float64(free) < leastFree*float64(size.Bytes) {
			d.add(Warning, fmt.Sprintf("%s has %d MiB of %d MiB left", dir, free>>20, size.Bytes>>20), "the kubelet removes images and evicts pods; make room")
		}
		if size.Inodes > 0 && float64(size.InodesFree) < leastFree*float64(size.Inodes) {
			d.add(Warning, fmt.Sprintf("%s has room for %d of %d files left", dir, size.InodesFree, size.Inodes), "remove small files, images first: crictl rmi --prune")
		}
	}
	return nil
}
