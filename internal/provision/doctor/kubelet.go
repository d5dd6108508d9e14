package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
)

// defaultMaxPods is the kubelet's own maxPods.
const defaultMaxPods = 110

// ofKubelet returns the machine's kubelet; ok is false if there is none, or it cannot be read, which
// the check of the kubelet reports.
func (m *Machine) ofKubelet() (k kubelet.Kubelet, ok bool) {
	k, err := m.kubelet()
	return k, err == nil && k.There()
}

// usesBerth reports whether the kubelet talks to berth.
func (m *Machine) usesBerth(k kubelet.Kubelet) bool {
	return k.Endpoint.Text != "" && socketOf(k.Endpoint.Text) == socketOf(m.Berth.Socket)
}

// kubeletImages finds a kubelet that pulls images with another runtime than it runs them with.
func kubeletImages(_ context.Context, m *Machine, r *doctor.Report) error {
	k, ok := m.ofKubelet()
	images := k.Limits.ImageEndpoint
	if !ok || images.Text == "" || k.Endpoint.Text == "" || socketOf(images.Text) == socketOf(k.Endpoint.Text) {
		return nil
	}
	r.Add(problem, "imageServiceEndpoint", fmt.Sprintf("the kubelet pulls images through %s (%s) and runs containers through %s (%s), which has other images",
		images.Text, images.From, k.Endpoint.Text, k.Endpoint.From), "remove imageServiceEndpoint from "+images.From+" and restart the kubelet")
	return nil
}

// kubeletAddresses compares the addresses of pods, and their number, with berth's subnets.
func kubeletAddresses(_ context.Context, m *Machine, r *doctor.Report) error {
	k, ok := m.ofKubelet()
	if !ok || !m.usesBerth(k) || m.Berth.Network == "cni" {
		return nil
	}
	subnets := prefixes(m.Berth.Subnets)
	if own, err := netip.ParsePrefix(k.Limits.PodCIDR.Text); err == nil && len(subnets) > 0 && !slices.Contains(subnets, own.Masked()) {
		r.Add(problem, "podCIDR", fmt.Sprintf("the kubelet's podCIDR is %s (%s), and network.subnets of berth are %s (%s): berth uses its own",
			own, k.Limits.PodCIDR.From, strings.Join(m.Berth.Subnets, ", "), m.Berth.File), "make them the same, or remove network.subnets: then berth takes the kubelet's")
		subnets = nil // their size is not the fault
	} else if err == nil && len(subnets) == 0 {
		subnets = []netip.Prefix{own}
	}
	pods := k.Limits.MaxPods.Int(defaultMaxPods)
	for _, subnet := range subnets {
		bits := subnet.Addr().BitLen() - subnet.Bits()
		if bits > 24 {
			continue
		}
		// The network's own address, that of the bridge and the last one are no pod's.
		if room := int64(1)<<bits - 3; room < pods {
			r.Add(warning, subnet.String(), fmt.Sprintf("%s has addresses for %d pods, and the kubelet starts up to %d", subnet, max(room, 0), pods),
				fmt.Sprintf("a larger subnet, or maxPods: %d in %s", max(room, 0), orDefault(k.Config)))
		}
	}
	return nil
}

// prefixes parses what it can: the configuration was checked where it was read.
func prefixes(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

// Least processes and inotify instances that a pod needs, and those of the node itself.
const (
	podPIDs, nodePIDs         = 128, 4096
	podWatchers, nodeWatchers = 2, 128
)

// kubeletPods compares the number of pods with limits that all pods share.
func kubeletPods(_ context.Context, m *Machine, r *doctor.Report) error {
	k, ok := m.ofKubelet()
	if !ok {
		return nil
	}
	pods := k.Limits.MaxPods.Int(defaultMaxPods)
	said := fmt.Sprintf("the kubelet starts up to %d pods (maxPods)", pods)
	if now, ok := m.sysctl("kernel.pid_max"); ok && now < pods*podPIDs+nodePIDs {
		r.Add(warning, "kernel.pid_max", fmt.Sprintf("%s, and kernel.pid_max is %d: processes cannot be created when pods have %d each", said, now, podPIDs),
			setSysctl("kernel.pid_max", 4194304))
	}
	if now, ok := m.sysctl("kernel.pid_max"); ok && k.Limits.PodPIDs.Int(-1) > now {
		r.Add(warning, "podPidsLimit", fmt.Sprintf("podPidsLimit is %s (%s), and kernel.pid_max is %d: one pod can use all processes of the machine",
			k.Limits.PodPIDs.Text, k.Limits.PodPIDs.From, now), "a lower podPidsLimit, or "+setSysctl("kernel.pid_max", 4194304))
	}
	if now, ok := m.sysctl(inotifyLimit); ok && now >= 512 && now < pods*podWatchers+nodeWatchers {
		r.Add(warning, inotifyLimit, fmt.Sprintf("%s, and %s is %d: \"too many open files\" in pods that watch files", said, inotifyLimit, now), setSysctl(inotifyLimit, 8192))
	}
	return nil
}

const kubeletRoot = "/var/lib/kubelet"

// kubeletEviction finds a disk on which nothing is removed before it is full. The kubelet's own disk has no runtime; that
// of images is known for berth alone.
func kubeletEviction(_ context.Context, m *Machine, r *doctor.Report) error {
	k, ok := m.ofKubelet()
	if !ok || k.Limits.Eviction == nil {
		return nil // the kubelet has its defaults
	}
	if evictionOff(k, "nodefs.available") {
		r.Add(warning, "nodefs.available", fmt.Sprintf("evictionHard (%s) has no limit for nodefs.available: pods fill up the disk of %s", k.Limits.EvictionFrom, kubeletRoot),
			`add nodefs.available: "10%" to evictionHard in `+k.Limits.EvictionFrom)
	}
	if !m.usesBerth(k) || !evictionOff(k, "imagefs.available") {
		return nil
	}
	mounts, err := m.host.Kernel().Mounts()
	if err != nil {
		return err
	}
	if images, own := mountOf(mounts, m.Berth.Root), mountOf(mounts, kubeletRoot); images.Path != own.Path {
		r.Add(warning, "imagefs.available", fmt.Sprintf("%s is on a file system of its own (%s), and evictionHard (%s) has no limit for imagefs.available: images fill it up",
			m.Berth.Root, images.Path, k.Limits.EvictionFrom), `add imagefs.available: "15%" to evictionHard in `+k.Limits.EvictionFrom)
	}
	return nil
}

// evictionOff reports whether evictionHard has no limit for a signal: none, or 0 in any unit.
func evictionOff(k kubelet.Kubelet, signal string) bool {
	value, set := k.Limits.Eviction[signal]
	if !set {
		return !k.Limits.MergeEviction
	}
	n, err := strconv.ParseFloat(strings.TrimRight(value, "%EPTGMKikm"), 64)
	return err == nil && n == 0
}

// mountOf is the mount that a path is on; the zero Mount where there is none.
func mountOf(mounts []provision.Mount, path string) provision.Mount {
	var found provision.Mount
	for _, m := range mounts {
		if m.Path == path || m.Path == "/" || strings.HasPrefix(path, m.Path+"/") {
			if len(m.Path) >= len(found.Path) {
				found = m
			}
		}
	}
	return found
}

// kubeletSeccomp checks what runtime/default needs.
func kubeletSeccomp(_ context.Context, m *Machine, r *doctor.Report) error {
	k, ok := m.ofKubelet()
	all := ok && k.Limits.SeccompDefault.On()
	if all && !provision.Exists(m.host.Files(), "/proc/sys/kernel/seccomp/actions_avail") {
		r.Add(problem, "seccompDefault", "seccompDefault is true ("+k.Limits.SeccompDefault.From+"), and the kernel has no seccomp: no container of a pod without a profile starts",
			"boot a kernel with CONFIG_SECCOMP_FILTER, or remove seccompDefault")
	}
	profile := m.Berth.SeccompProfile
	if !ok && profile == "" {
		r.NotNeeded(m.withoutKubelet())
		return nil
	}
	if profile == "" || provision.Exists(m.host.Files(), profile) {
		return nil
	}
	level, who := warning, "containers with runtime/default do not start"
	if all && m.usesBerth(k) {
		level, who = problem, "no container without a profile of its own starts, as seccompDefault is true ("+k.Limits.SeccompDefault.From+")"
	}
	r.Add(level, profile, fmt.Sprintf("runtime.seccomp_profile (%s) is %s, which is not there: %s", m.Berth.File, profile, who), "put the profile there, or remove the key")
	return nil
}

// idsPerPod is the kubelet's default length of the range of ids of a pod's user namespace. Ranges
// begin at its multiples.
const idsPerPod = 65536

// idRange is one line of /etc/subuid or /etc/subgid.
type idRange struct {
	user          string
	first, length int64
}

// kubeletUserNamespaces checks the ranges of ids that the kubelet gives to pods.
func kubeletUserNamespaces(_ context.Context, m *Machine, r *doctor.Report) error {
	k, ok := m.ofKubelet()
	if !ok {
		return nil
	}
	if now, ok := m.sysctl("user.max_user_namespaces"); ok && now == 0 {
		r.Add(warning, "user.max_user_namespaces", "user.max_user_namespaces is 0: pods with hostUsers: false do not start", setSysctl("user.max_user_namespaces", 65536))
	}
	uids, err := m.idRanges("/etc/subuid")
	if err != nil {
		return err
	}
	gids, err := m.idRanges("/etc/subgid")
	if err != nil {
		return err
	}
	own, groups := ofUser(uids, "kubelet"), ofUser(gids, "kubelet")
	if len(own) == 0 && len(groups) == 0 {
		return nil // the kubelet uses its default range
	}
	if !slices.Equal(own, groups) || len(own) != 1 {
		r.Add(problem, "/etc/subuid", "/etc/subuid and /etc/subgid do not have the same one range for the user kubelet: the kubelet does not start",
			"one line kubelet:65536:7208960 in both files, the same in each")
		return nil
	}
	per := k.Limits.IDsPerPod.Int(idsPerPod)
	pods, is := k.Limits.MaxPods.Int(defaultMaxPods), own[0]
	if is.first < idsPerPod || is.first%idsPerPod != 0 || is.length < pods*per {
		r.Add(problem, "/etc/subuid", fmt.Sprintf("the range of the user kubelet in /etc/subuid begins at %d and has %d ids; for %d pods with %d ids each it must begin at a multiple of %d and have %d: the kubelet does not start",
			is.first, is.length, pods, per, idsPerPod, pods*per), fmt.Sprintf("kubelet:65536:%d in /etc/subuid and /etc/subgid, if no other user has these ids", pods*per))
		return nil
	}
	for _, other := range uids {
		if other.user != "kubelet" && other.first < is.first+is.length && is.first < other.first+other.length {
			r.Add(warning, "/etc/subuid", fmt.Sprintf("the ranges of the users kubelet and %s in /etc/subuid overlap: a container of the one may own files of a pod", other.user),
				"move one of the ranges, in /etc/subgid as well")
		}
	}
	return nil
}

// idRanges reads USER:FIRST:COUNT lines; none if there is no such file.
func (m *Machine) idRanges(file string) ([]idRange, error) {
	data, err := read(m.host, file)
	if err != nil {
		return nil, errs.IgnoreNotFound(err)
	}
	var all []idRange
	for line := range strings.Lines(string(data)) {
		parts := strings.Split(strings.TrimSpace(line), ":")
		if len(parts) != 3 {
			continue
		}
		first, err1 := strconv.ParseInt(parts[1], 10, 64)
		length, err2 := strconv.ParseInt(parts[2], 10, 64)
		if errors.Join(err1, err2) == nil {
			all = append(all, idRange{parts[0], first, length})
		}
	}
	return all, nil
}

func ofUser(all []idRange, user string) []idRange {
	return slices.DeleteFunc(slices.Clone(all), func(r idRange) bool { return r.user != user })
}

// kubeletSysctls checks what a kubelet with protectKernelDefaults demands.
func kubeletSysctls(_ context.Context, m *Machine, r *doctor.Report) error {
	k, ok := m.ofKubelet()
	if !ok || !k.Limits.ProtectKernel.On() {
		return nil
	}
	for _, want := range []struct {
		key   string
		value int64
	}{
		{"vm.overcommit_memory", 1},
		{"vm.panic_on_oom", 0},
		{"kernel.panic", 10},
		{"kernel.panic_on_oops", 1},
		{"kernel.keys.root_maxkeys", 1000000},
		{"kernel.keys.root_maxbytes", 25000000},
	} {
		if now, ok := m.sysctl(want.key); ok && now != want.value {
			r.Add(problem, want.key, fmt.Sprintf("%s is %d, and protectKernelDefaults (%s) demands %d: the kubelet does not start", want.key, now, k.Limits.ProtectKernel.From, want.value),
				setSysctl(want.key, want.value))
		}
	}
	return nil
}
