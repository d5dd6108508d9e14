package logs

import (
	"maps"

	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
)

// nodeCommands returns the commands of a node by the file that gets their output.
func nodeCommands(r noderuntime.Runtime) map[string]string {
	all := map[string]string{
		"journal.log": "journalctl --no-pager",
		"kubelet.log": "journalctl --no-pager --unit=kubelet.service",
		"units.txt":   "systemctl --no-pager --all --failed; systemctl --no-pager list-jobs",
		"network.txt": "ip address; ip route; ip -6 route; ip rule; nft list ruleset",
		"disk.txt":    "df -h /var /run; df -i /var /run",
	}
	switch r.Name {
	case "berth":
		maps.Copy(all, map[string]string{
			"kubernetes-version.txt": "cat " + nodeimage.VersionFile,
			"berth.log":              "journalctl --no-pager --unit=berth.service --unit=berth-supervisor.service",
			"berth-info.txt":         "berth info",
			"images.log":             "berth image ls",
			"pods.log":               "berth pod ls",
			"jobs.log":               "berth jobs",
		})
	case "containerd":
		maps.Copy(all, map[string]string{
			"kubernetes-version.txt": "cat " + noderuntime.KindVersionFile,
			"containerd.log":         "journalctl --no-pager --unit=containerd.service",
			"containerd-config.toml": "containerd config dump",
			"images.log":             "ctr --namespace=k8s.io images list",
			"containers.log":         "ctr --namespace=k8s.io containers list; ctr --namespace=k8s.io tasks list",
		})
	}
	return all
}

// balancerCommands returns the commands of a load balancer by the file that gets their output.
func balancerCommands() map[string]string {
	return map[string]string{"haproxy.cfg": "cat " + innode.HAProxyFile, "network.txt": "ip address; ip route; ip -6 route"}
}

// clusterCommands returns the commands of a control plane that describe the cluster.
func clusterCommands() map[string]string {
	const kubectl = "kubectl --kubeconfig=" + kubeadm.AdminFile + " --request-timeout=20s "
	return map[string]string{
		"cluster-nodes.txt":  kubectl + "get nodes --output=wide; " + kubectl + "describe nodes",
		"cluster-pods.txt":   kubectl + "get pods,deployments,daemonsets,services,persistentvolumeclaims,persistentvolumes --all-namespaces --output=wide",
		"cluster-events.txt": kubectl + "get events --all-namespaces --sort-by=.metadata.creationTimestamp",
	}
}
