package provider

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// dialect has the differences of one engine from the others.
type dialect struct {
	// name is its name for --provider. tools are programs of this dialect, in the order of the
	// search; kind has the same names.
	name  string
	tools []string
	// banner is how the output of --version begins.
	banner string
	// oldest is the first version that works, "" for any; upgrade is how to get it.
	oldest, upgrade string
	// start is the command that starts the engine's daemon; "" if it has none.
	start string
	// oldestDaemon is the first version of the daemon that works, "" for any; daemonName is its
	// name.
	oldestDaemon, daemonName string
	// info are the arguments that print the engine's facts, readInfo reads them.
	info     []string
	readInfo func(text []byte, f *Facts) error

	// flags are in every call of run; guest in those of nodes, which are privileged.
	flags, guest []string
	// restart brings a container back when the host boots.
	restart string
	// rebooted is the systemd unit that does so; "" if the engine does it itself.
	rebooted string
	// serial: containers are created one after the other.
	serial bool
	// kill are flags of rm that make it kill without a grace period, from version killFrom on.
	kill     []string
	killFrom string
	// rmAlwaysExitsZero: rm -f exits with status 0 even when it fails.
	rmAlwaysExitsZero bool
	// volumeOptions: a volume is mounted nodev and nosuid by default.
	volumeOptions bool
	// qualify: an image's name needs its registry, and may have no tag beside a digest.
	qualify bool
	// anyPort is the port of the host that lets the engine pick one.
	anyPort string
	// remap: --userns=host where the engine remaps users.
	remap bool
	// mapper: /dev/mapper is mounted for filesystems whose usage the kubelet measures through it;
	// rootlessMapper: also for rootless engines.
	mapper, rootlessMapper bool
	// save are flags for an archive in docker's format, saveAll those for several images in one
	// archive.
	save, saveAll []string

	// networkFlags are in every call that creates a network.
	networkFlags []string
	// mtu: a network gets the MTU of the engine's own.
	mtu bool
	// subnet4: a network has stable addresses only if its IPv4 subnet is given.
	subnet4 bool
	// stable6: --ip6 works; declares6: only on a network whose configuration declares it. Versions
	// before stableFrom have no --ip6, and no container gets a stable address there; "" is any.
	stable6, declares6 bool
	stableFrom         string
	// loopback6: ports of ::1 lead into containers, also of an engine that runs as root.
	loopback6 bool
	// networkRmIgnoresStopped: network rm checks for running containers only, and removes the
	// network of stopped ones.
	networkRmIgnoresStopped bool
	// restartsKilled: the engine restarts a container that was killed and not stopped, even during
	// its removal.
	restartsKilled bool
	// namesakes: two networks may have one name.
	namesakes bool
	// dockerConfig: docker's configuration has proxies, too.
	dockerConfig bool
}

// dialects are the engines in the order of the search, which is kind's.
func dialects() []dialect {
	docker := dialect{
		name: "docker", tools: []string{"docker"}, banner: "Docker version",
		oldest: "20.10.0", upgrade: "install a current docker (https://docs.docker.com/engine/install/)", start: "systemctl start docker",
		info: []string{"info", "--format", "{{json .}}"}, readInfo: dockerInfo,
		// A daemon may put an init of its own before systemd, which has to be pid 1. A
		// private cgroup namespace is the default with cgroup v2 only.
		flags: []string{"--init=false", "--cgroupns=private"},
		guest: []string{"--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"},
		// on-failure, which kind uses, does not restart containers that ended with status 0 when
		// the host went down; always restarts those that were stopped on purpose.
		restart: "unless-stopped",
		anyPort: "0", remap: true, mapper: true,
		networkFlags: []string{"-o", "com.docker.network.bridge.enable_ip_masquerade=true"},
		mtu:          true, subnet4: true, stable6: true, loopback6: true, namesakes: true, dockerConfig: true,
	}
	nerdctl := docker
	nerdctl.name, nerdctl.tools, nerdctl.banner = "nerdctl", []string{"nerdctl", "finch", "nerdctl.lima"}, "nerdctl version"
	nerdctl.oldest, nerdctl.upgrade, nerdctl.start = "1.3.0", "install a current nerdctl (https://github.com/containerd/nerdctl/releases)", "systemctl start containerd"
	// Older ones have one restart policy, always, which also restarts stopped containers.
	nerdctl.oldestDaemon, nerdctl.daemonName = "1.7.0", "containerd"
	nerdctl.anyPort = "" // 0 is refused
	nerdctl.remap, nerdctl.mapper, nerdctl.namesakes, nerdctl.dockerConfig = false, false, false, false
	nerdctl.networkFlags, nerdctl.mtu = nil, false
	// Its CNI configuration assigns any requested IPv4 address, and IPv6 only if it declares so,
	// which older versions did not write.
	nerdctl.subnet4, nerdctl.declares6 = false, true
	// With CNI and netavark the kernel translates addresses, and it never routes a packet from ::1
	// to another host. Rootless engines, and docker always, have a proxy program.
	nerdctl.loopback6 = false
	nerdctl.rmAlwaysExitsZero, nerdctl.networkRmIgnoresStopped, nerdctl.restartsKilled = true, true, true
	nerdctl.serial = true // it has races for names and addresses
	podman := dialect{
		name: "podman", tools: []string{"podman"}, banner: "podman version",
		// Older ones have no labels of networks.
		oldest: "3.0.0", upgrade: "install a current podman (https://podman.io/docs/installation)",
		info: []string{"info", "--format", "json"}, readInfo: podmanInfo,
		flags: []string{"--cgroupns=private"},
		// podman's systemd mode mounts on /var/log/journal and /run; nodes should be the same on
		// every engine. Its limit of 2048 processes and threads is enough for a few hundred pods.
		guest: []string{"--systemd=false", "--pids-limit=-1"},
		// podman applies no other policy when the host boots.
		restart: "always", rebooted: "podman-restart.service",
		// Otherwise it waits ten seconds for each node, whose disk is removed next.
		kill: []string{"-t", "0"}, killFrom: "4.0.0",
		volumeOptions: true, qualify: true, mapper: true, rootlessMapper: true, stable6: true, stableFrom: "4.0.0",
		save: []string{"--format", "docker-archive"}, saveAll: []string{"--multi-image-archive"},
	}
	return []dialect{docker, nerdctl, podman}
}

// dialectOf finds the dialect of a tool.
func dialectOf(tool string) (dialect, error) {
	all := dialects()
	i := slices.IndexFunc(all, func(d dialect) bool { return slices.Contains(d.tools, tool) })
	if i < 0 {
		var names []string
		for _, d := range all {
			names = append(names, d.tools...)
		}
		return dialect{}, fmt.Errorf("no provider is called %q; there are %s, berth: %w", tool, strings.Join(names, ", "), errs.Invalid)
	}
	return all[i], nil
}
