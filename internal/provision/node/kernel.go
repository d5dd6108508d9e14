package node

import (
	"maps"
	"slices"

	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/tasks"
)

const (
	modulesFile = "/etc/modules-load.d/berth-node.conf"
	// sysctlFile sorts after 99-sysctl.conf, a link to /etc/sysctl.conf on Debian.
	sysctlFile = "/etc/sysctl.d/99-zz-berth-node.conf"
)

// modules loads what containers and pods need, now and at boot.
func (b *builder) modules() {
	names := []string{"overlay", "br_netfilter"}
	optional := []string{"br_netfilter"}
	if b.n.Network.Masquerade.Enabled {
		names = append(names, "nf_tables", "nft_masq", "nft_fib_inet")
		// Kernels may have them built in without saying so. A missing one shows when the rules are
		// loaded.
		optional = append(optional, "nf_tables", "nft_masq", "nft_fib_inet")
	}
	for _, name := range b.n.Kernel.Modules {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		optional = slices.DeleteFunc(optional, func(o string) bool { return o == name })
	}
	b.before(tasks.Modules{M: b.meta("kernel.modules"), Path: modulesFile, Names: names, Optional: optional})
}

// defaultSysctls is what a Kubernetes node needs: forwarding, room for many pods, and what the
// kubelet checks with protectKernelDefaults.
func (b *builder) defaultSysctls() map[string]string {
	values := b.forwarding()
	maps.Copy(values, map[string]string{
		"net.bridge.bridge-nf-call-iptables":  "1",
		"net.bridge.bridge-nf-call-ip6tables": "1",
		"net.core.somaxconn":                  "32768",
		"net.core.netdev_max_backlog":         "16384",
		"net.ipv4.tcp_max_syn_backlog":        "8192",
		"net.ipv4.neigh.default.gc_thresh1":   "80000",
		"net.ipv4.neigh.default.gc_thresh2":   "90000",
		"net.ipv4.neigh.default.gc_thresh3":   "100000",
		"fs.inotify.max_user_instances":       "8192",
		"fs.inotify.max_user_watches":         "524288",
		"vm.max_map_count":                    "262144",
		"vm.overcommit_memory":                "1",
		"vm.panic_on_oom":                     "0",
		"kernel.panic":                        "10",
		"kernel.panic_on_oops":                "1",
		"kernel.keys.root_maxkeys":            "1000000",
		"kernel.keys.root_maxbytes":           "25000000",
	})
	return values
}

// forwarding makes a node forward its pods' packets.
func (b *builder) forwarding() map[string]string {
	values := map[string]string{"net.ipv4.ip_forward": "1"}
	six := slices.ContainsFunc(slices.Concat(b.n.Network.PodCIDRs, b.n.Network.Masquerade.NonCIDRs), func(cidr string) bool { return !is4(cidr) })
	if six {
		values["net.ipv6.conf.all.forwarding"] = "1"
		// A router ignores router advertisements, and the node may have its address from one.
		values["net.ipv6.conf.all.accept_ra"] = "2"
		values["net.ipv6.conf.default.accept_ra"] = "2"
	}
	return values
}

// sysctls sets the defaults, or what the network must have, and the user's own, which
// win.
func (b *builder) sysctls() {
	values := map[string]string{}
	switch {
	case nodefile.On(b.n.Kernel.Defaults):
		values = b.defaultSysctls()
	case b.n.Network.Mode == "kubenet" || b.n.Kubelet.Kubeadm:
		values = b.forwarding() // its pods need it, and kubeadm checks it
	}
	maps.Copy(values, b.n.Kernel.Sysctls)
	if len(values) == 0 {
		return
	}
	task := tasks.Sysctls{M: b.meta("kernel.sysctls", "modules "+modulesFile), Path: sysctlFile}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		_, asked := b.n.Kernel.Sysctls[key]
		// Kernels differ; what the user asks for must be there.
		task.Values = append(task.Values, tasks.Sysctl{Key: key, Value: values[key], Optional: !asked && key != "net.ipv4.ip_forward"})
	}
	b.before(task)
}

// swap is turned off where asked.
func (b *builder) swap() {
	if b.n.Kernel.Swap == "off" {
		b.before(tasks.Swap{M: b.meta("kernel.swap"), On: false})
	}
}
