package node

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/manifest"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubeadmconf"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/preflight"
)

// Kubeadm returns the facts of a machine and its node file that kubeadm's configuration needs. It
// talks to no runtime, so it works before the node file is applied.
func Kubeadm(ctx context.Context, host provision.Host, n *nodefile.Node) (kubeadmconf.Node, error) {
	f := facts.Facts{}
	var err error
	if f.Distro, err = facts.Distro(host.Files()); err != nil {
		return kubeadmconf.Node{}, err
	}
	if n.Runtime.SkipInstall || f.Distro.Immutable {
		f.Versions = facts.RuntimeVersions(ctx, host, n.Runtime.Name)
	}
	made, faults := kubeadm(n, f)
	if len(faults) > 0 {
		return kubeadmconf.Node{}, faults
	}
	made.Version, made.CgroupV1 = preflight.Version(ctx, host), preflight.CgroupV1(host)
	return made, nil
}

// kubeadm is the part of it that the node file says. A node file for kubeadm has a runtime with a
// CRI socket.
func kubeadm(n *nodefile.Node, f facts.Facts) (made kubeadmconf.Node, faults nodefile.FieldErrors) {
	rt := runtimeOf(n, f)
	made = kubeadmconf.Node{Socket: rt.socket, CgroupDriver: "systemd", AsksDriver: rt.reportsDriver()}
	if n.Runtime.CgroupDriver == "cgroupfs" {
		made.CgroupDriver = "cgroupfs"
	}
	if !n.Kubelet.Kubeadm {
		faults = append(faults, nodefile.NewFieldError(errs.Invalid, "kubelet.kubeadm", "is not set, and kubeadm wants a kubelet whose unit reads what it writes; set kubelet.kubeadm: true, and apply"))
	}
	flags := n.Kubelet.Flags
	made.Name, made.Labels = strings.ToLower(flags["hostname-override"]), flags["node-labels"]
	if text, given := flags["node-ip"]; given {
		first, _, _ := strings.Cut(text, ",")
		if ip, err := netip.ParseAddr(first); err != nil {
			faults = append(faults, nodefile.NewFieldError(errs.Invalid, manifest.Key("kubelet.flags", "node-ip"), "%q: want an IP address", first))
		} else if !ip.IsUnspecified() { // 0.0.0.0 and :: only choose the family
			made.Address = ip.String()
		}
	}
	if text, given := flags["register-with-taints"]; given {
		taints, err := kubeadmconf.ParseTaints(text)
		if err != nil {
			faults = append(faults, nodefile.WrapFieldError(manifest.Key("kubelet.flags", "register-with-taints"), fmt.Errorf("register-with-taints: %w", err)))
		}
		made.Taints = taints
	}
	return made, faults
}

// reportsDriver: the runtime reports its cgroup driver to the kubelet (RuntimeConfig), which
// overrides the kubelet's own setting.
func (rt runtime) reportsDriver() bool {
	return rt.name != "containerd" || rt.version.Major >= 2
}

// NoPodsOutside refuses pod CIDRs of the node that are outside of its cluster's.
func NoPodsOutside(n *nodefile.Node, cluster string) error {
	var faults nodefile.FieldErrors
	for i, text := range n.Network.PodCIDRs {
		ours, err := netip.ParsePrefix(text)
		if err != nil || cluster == "" {
			continue // already checked, or the cluster's CIDRs are unknown
		}
		inside := false
		for part := range strings.SplitSeq(cluster, ",") {
			all, err := netip.ParsePrefix(part)
			inside = inside || err != nil || all.Bits() <= ours.Bits() && all.Contains(ours.Addr())
		}
		if !inside {
			faults = append(faults, nodefile.NewFieldError(errs.Invalid, fmt.Sprintf("network.podCIDRs[%d]", i), "%s is not in --pod-network-cidr %s, and Services treat such pods as clients outside the cluster", text, cluster))
		}
	}
	return faults.Join(nil)
}
