package doctor

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/finding"
)

// kubectl is its command line in a control plane.
const kubectl = "kubectl --kubeconfig=/etc/kubernetes/admin.conf --request-timeout=8s "

// controlPlane checks whether kubeadm has created a cluster, and reports its failed health checks,
// which the API server returns in its own node.
func (d *diagnosis) controlPlane(ctx context.Context) error {
	for _, n := range d.machines() {
		if inventory.Role(n) != config.ControlPlane {
			continue
		}
		said, err := d.output(ctx, n.Name, "test -e /etc/kubernetes/admin.conf && echo made")
		if err != nil {
			return err
		}
		if said == "made" {
			d.made, d.first = true, n.Name
			break
		}
		d.add(finding.Problem, n.Name, n.Name+" has no /etc/kubernetes/admin.conf: kubeadm init has not come to its end", d.again())
	}
	if !d.made {
		return d.skip("no control plane runs that has been set up")
	}
	said, err := d.output(ctx, d.first, kubectl+"get --raw='/readyz?verbose'")
	if err != nil {
		return err
	}
	said = strings.ReplaceAll(said, `\n`, "\n") // an error has it so
	d.answers = strings.Contains(said, "readyz check passed") || strings.Contains(said, "[+]ping ok")
	if !d.answers {
		d.add(finding.Problem, d.first, d.first+": the API server does not answer: "+last(said, 1),
			fmt.Sprintf("etcd or the API server has ended, or is slow to start; berth cluster logs --name %s DIR has their logs below %s/pods", d.name, d.first))
		return nil
	}
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[-]") {
			d.add(finding.Problem, d.first, fmt.Sprintf("%s: the API server says %s", d.first, strings.TrimPrefix(line, "[-]")), "berth cluster restart "+d.name+", if it stays so")
		}
	}
	return nil
}

// api checks that the API answers on this host.
func (d *diagnosis) api(ctx context.Context) error {
	if !d.made {
		return d.skip("no control plane runs that has been set up")
	}
	admin, err := d.Config(ctx, d.name, false)
	if err != nil {
		return err
	}
	client, err := kubeapi.New(admin, nil)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	nodes, err := client.WaitForNodes(waiting, func([]kubeapi.Node) bool { return true })
	if err == nil {
		d.known = nodes
		return nil
	}
	server := admin.Clusters[admin.CurrentContext].Server
	if d.answers && d.Provider.Facts().Remote {
		d.add(finding.Warning, server, fmt.Sprintf("%s is a port of the host of %s, which this host does not reach; the API answers in its node, but not kubectl here", server, d.Provider.Name()),
			"set networking.apiServerAddress to an address of that host in a new cluster, or use kubectl on the network of the nodes with berth cluster kubeconfig --internal")
		return nil
	}
	fix := "see what is said of the control plane"
	if d.answers {
		fix = "it answers in its node, so the way there is cut: berth cluster restart " + d.name + " publishes its port again"
	}
	d.add(finding.Problem, server, fmt.Sprintf("no server answers this host at %s: %s", server, oneLine(err)), fix)
	return nil
}

// kubeconfig compares what kubectl would use with the cluster.
func (d *diagnosis) kubeconfig(ctx context.Context) error {
	if !d.made {
		return d.skip("no control plane runs that has been set up")
	}
	admin, err := d.Config(ctx, d.name, false)
	if err != nil {
		return err
	}
	name := admin.CurrentContext
	fix := "berth cluster kubeconfig export " + d.name
	found, err := d.Kubeconfig.Find(name)
	if err != nil {
		return err
	}
	is := admin.Clusters[name]
	files := strings.Join(d.Kubeconfig, ", ")
	switch {
	case found == nil:
		d.add(finding.Warning, name, fmt.Sprintf("%s has no context %s", files, name), fix)
	case found.Server != is.Server:
		d.add(finding.Problem, name, fmt.Sprintf("%s says that %s is at %s; it is at %s", files, name, found.Server, is.Server), fix)
	case !bytes.Equal(found.CertificateAuthorityData, is.CertificateAuthorityData):
		d.add(finding.Problem, name, fmt.Sprintf("%s has the certificate of another cluster for %s, one that had the name before", files, name), fix)
	}
	return nil
}

// ready compares the nodes of the API with the existing containers.
func (d *diagnosis) ready(context.Context) error {
	if d.known == nil {
		return d.skip("the API does not answer this host")
	}
	for _, n := range d.known {
		if !n.Ready {
			d.add(finding.Problem, n.Name, fmt.Sprintf("%s is not Ready: %s", n.Name, n.Why), fmt.Sprintf("%s exec %s berth node doctor checks the node; journalctl -u kubelet in it shows more", d.Provider.Name(), n.Name))
		}
		if !slices.ContainsFunc(d.nodes, func(c provider.Node) bool { return c.Name == n.Name }) {
			d.add(finding.Problem, n.Name, fmt.Sprintf("the cluster has a node %s, and there is no container of that name", n.Name), "kubectl delete node "+n.Name)
		}
	}
	for _, n := range d.nodes {
		if inventory.Role(n) != config.BalancerRole && !slices.ContainsFunc(d.known, func(k kubeapi.Node) bool { return k.Name == n.Name }) {
			d.add(finding.Problem, n.Name, n.Name+" has not joined the cluster", d.again())
		}
	}
	return nil
}

// dnsScript prints the address of the cluster's DNS, its answer, and the state of its pods.
const dnsScript = `ip=$(` + kubectl + `--namespace=kube-system get service kube-dns --output=jsonpath='{.spec.clusterIP}') || exit
echo "server $ip"
` + kubectl + `--namespace=kube-system get pods --selector=k8s-app=kube-dns --output=jsonpath='{range .items[*]}pod {.metadata.name} {.status.phase} {.status.containerStatuses[0].ready} {.status.containerStatuses[0].state.waiting.reason}{"\n"}{end}'
berth cluster in-node lookup --server "$ip" kubernetes.default.svc.cluster.local 2>&1 | sed 's/^/answer /'`

// dns queries the cluster's DNS, in a node, for a name that every cluster has.
func (d *diagnosis) dns(ctx context.Context) error {
	if !d.answers {
		return d.skip("the API server does not answer")
	}
	said, err := d.output(ctx, d.first, dnsScript)
	if err != nil {
		return err
	}
	var pods, answer []string
	server, ready := "", 0
	for line := range strings.Lines(said) {
		what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch what {
		case "server":
			server = rest
		case "pod":
			pods = append(pods, rest)
			if words := strings.Fields(rest); len(words) > 2 && words[2] == "true" {
				ready++
			}
		case "answer":
			answer = append(answer, rest)
		}
	}
	text := strings.Join(answer, " ")
	switch {
	case server == "":
		d.add(finding.Warning, "kube-dns", "the cluster has no service kube-system/kube-dns: "+last(said, 1), "")
	case ready == 0:
		d.add(finding.Problem, "CoreDNS", "no pod of CoreDNS is ready: "+strings.Join(pods, ", "), "kubectl -n kube-system describe pods -l k8s-app=kube-dns; without a network of pods (disableDefaultCNI) install one")
	case strings.HasPrefix(text, "address"):
	case strings.Contains(text, "unknown command") || strings.Contains(text, "not found: "):
		return d.skip("the node has no program to query it with")
	default:
		d.add(finding.Problem, server, fmt.Sprintf("%s: the DNS of the cluster at %s does not answer: %s", d.first, server, text),
			"CoreDNS is ready, so the way there is cut: kubectl -n kube-system get pods -l k8s-app=kube-proxy; nft list ruleset in the node")
	}
	return nil
}
