// Package hostcheck finds what a host lacks for nodes as containers, and the command
// that brings it. It reads /proc and /sys, and changes nothing.
package hostcheck

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/finding"
)

// UnmetRequirement is something that nodes need and the host does not have.
type UnmetRequirement struct {
	// Finding: Evidence is a sentence without a full stop, Fix the commands that help, one a line.
	// At Level finding.Problem no node can run; at finding.Warning some may, or not for long.
	finding.Finding
	// Once is a word for what is shown to a user once on a host, and not at each cluster; "" is shown
	// each time.
	Once string
}

// Warning is an unmet requirement with which some nodes can run.
func Warning(evidence, fix string) UnmetRequirement { return newUnmet(finding.Warning, evidence, fix) }

// Problem is an unmet requirement with which no node can run.
func Problem(evidence, fix string) UnmetRequirement { return newUnmet(finding.Problem, evidence, fix) }

func newUnmet(level finding.Level, evidence, fix string) UnmetRequirement {
	return UnmetRequirement{Finding: finding.Finding{Check: "host", Level: level, Evidence: evidence, Fix: fix}}
}

// Fatal reports whether no node can run.
func (u UnmetRequirement) Fatal() bool { return u.Level == finding.Problem }

func (u UnmetRequirement) String() string {
	return u.Evidence + "; fix it with:\n  " + strings.ReplaceAll(u.Fix, "\n", "\n  ")
}

// Host is what Check looks at.
type Host struct {
	// Root is the root of the host's file system.
	Root fs.FS
	// Rootless: the engine is, and its nodes cannot load modules.
	Rootless bool
	// Home is the directory of the user that a rootless engine runs as.
	Home string
}

// What one node takes of the limits on inotify, which all containers of a host share:
// its systemd, container runtime and kubelet, and what pods like CoreDNS watch.
const (
	instancesOfNode = 64
	watchesOfNode   = 16384
)

// What kind recommends, and what is enough for any cluster on one machine.
const (
	instancesEnough = 512
	watchesEnough   = 524288
)

// ClassicCgroups is what a host with cgroup v1 lacks.
func ClassicCgroups() UnmetRequirement {
	unmet := Warning("this host has cgroup v1, which Kubernetes supports no more from 1.35 on unless kubelets are told failCgroupV1: false, as berth does",
		"boot it with systemd.unified_cgroup_hierarchy=1")
	unmet.Once = "cgroup-v1"
	return unmet
}

// Check returns what the host lacks for that many nodes.
func Check(h Host, nodes int) []UnmetRequirement {
	found := h.inotify(nodes)
	if _, err := fs.Stat(h.Root, "lib/modules"); err != nil {
		// Empty it is as good: what nodes need may be part of the kernel.
		found = append(found, Warning("/lib/modules does not exist on this host, and nodes mount it; it is made, empty, where that is allowed", "mkdir -p /lib/modules"))
	}
	return append(found, h.modules()...)
}

// IPVS returns what kube-proxy lacks on a host to work by IPVS: its kernel has none, and there
// is no module to load. nil is nothing.
func IPVS(h Host) *UnmetRequirement {
	const name = "ip_vs"
	if _, err := fs.Stat(h.Root, "sys/module/"+name); err == nil {
		return nil
	}
	builtin, known := h.builtin()
	if slices.Contains(builtin, name) || known && !h.Rootless && h.loadable(name) {
		return nil
	}
	unmet := Problem("networking.kubeProxyMode is ipvs, and this host's kernel has no module ip_vs loaded, nor one that nodes can load",
		"modprobe ip_vs   # or kubeProxyMode: nftables in the cluster file")
	return &unmet
}

// inotify checks the two limits that users run into with some nodes.
func (h Host) inotify(nodes int) []UnmetRequirement {
	var found []UnmetRequirement
	for _, limit := range []struct {
		name            string
		ofNode, enough  int
		what, otherwise string
	}{
		{"max_user_instances", instancesOfNode, instancesEnough, "instances", "too many open files"},
		{"max_user_watches", watchesOfNode, watchesEnough, "watches", "no space left on device"},
	} {
		value, ok := h.number("proc/sys/fs/inotify/" + limit.name)
		need := min(nodes*limit.ofNode, limit.enough)
		if !ok || value >= need {
			continue
		}
		found = append(found, Warning(
			fmt.Sprintf("this host allows %d inotify %s, and %d nodes take about %d; pods would fail with %q", value, limit.what, nodes, need, limit.otherwise),
			fmt.Sprintf("sysctl -w fs.inotify.%s=%d", limit.name, limit.enough)))
	}
	return found
}

// modules checks for what a node cannot load by itself.
func (h Host) modules() []UnmetRequirement {
	type module struct {
		name, why string
		fatal     bool
	}
	// A node of an engine that is root loads modules when it needs them.
	var wanted []module
	if h.Rootless {
		wanted = []module{
			{"overlay", "images are overlays", true},
			{"nf_nat", "Services are translated addresses", true},
			{"ip_tables", "kube-proxy and port mappings use iptables", false},
			{"iptable_nat", "kube-proxy and port mappings use iptables", false},
			{"ip6_tables", "kube-proxy uses ip6tables", false},
			{"ip6table_nat", "kube-proxy uses ip6tables", false},
		}
	}
	builtin, known := h.builtin()
	var found []UnmetRequirement
	for _, m := range wanted {
		if _, err := fs.Stat(h.Root, "sys/module/"+m.name); err == nil || slices.Contains(builtin, m.name) {
			continue
		}
		level := finding.Warning
		if m.fatal && known { // else it may be part of the kernel
			level = finding.Problem
		}
		found = append(found, newUnmet(level,
			fmt.Sprintf("the kernel module %s is not loaded (%s), and a rootless engine cannot load it", m.name, m.why),
			fmt.Sprintf("sudo modprobe %s\necho %s | sudo tee -a /etc/modules-load.d/berth.conf", m.name, m.name)))
	}
	return found
}

// modulesDir is that of the running kernel; "" is none.
func (h Host) modulesDir() string {
	release, err := fs.ReadFile(h.Root, "proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return path.Join("lib/modules", strings.TrimSpace(string(release)))
}

// loadable reports whether there is a file of a module.
func (h Host) loadable(name string) bool {
	text, err := fs.ReadFile(h.Root, path.Join(h.modulesDir(), "modules.dep"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		file, _, _ := strings.Cut(line, ":")
		base, _, _ := strings.Cut(path.Base(file), ".ko")
		if strings.ReplaceAll(base, "-", "_") == name {
			return true
		}
	}
	return false
}

// builtin are modules that are part of the kernel, not all of which show in /sys/module.
// known is false where the host does not say.
func (h Host) builtin() (names []string, known bool) {
	text, err := fs.ReadFile(h.Root, path.Join(h.modulesDir(), "modules.builtin"))
	if err != nil {
		return nil, false
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		name := strings.TrimSuffix(path.Base(strings.TrimSpace(line)), ".ko")
		all = append(all, strings.ReplaceAll(name, "-", "_"))
	}
	return all, true
}

func (h Host) number(name string) (int, bool) {
	text, err := fs.ReadFile(h.Root, name)
	if err != nil {
		return 0, false
	}
	value, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return value, err == nil
}
