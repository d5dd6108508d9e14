// Package doctor explains what is wrong with a cluster, or with a host that cannot have one: each
// check says what it saw, and what to do. It changes nothing, and also examines incomplete
// clusters.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// timeout bounds each request to something that may not answer.
const timeout = 10 * time.Second

// diagnosis is one run over all checks.
type diagnosis struct {
	*cluster.Clusters
	name    string
	options Options
	// report is that of the check that runs.
	report *doctor.Report
	// listed is why the nodes could not be listed.
	listed error
	// nodes are the cluster's containers, sorted by name.
	nodes []provider.Node
	// made: kubeadm has created a cluster of them. first is a running control plane.
	made  bool
	first string
	// answers: the API answers in its node. known are the nodes that it lists; nil if it does not
	// answer this host.
	answers bool
	known   []kubeapi.Node
}

// Options say what to examine.
type Options struct {
	// Name is the cluster. Wanted: the user named it, so it must exist.
	Name   string
	Wanted bool
	// Which is the error that there are several clusters and the user named none: only the host is
	// examined, and a finding says so. nil otherwise.
	Which error
}

// check makes a check of a step.
func check(id, title, reads string, look func(d *diagnosis, ctx context.Context) error) doctor.Check[*diagnosis] {
	return doctor.Check[*diagnosis]{
		Info: doctor.Info{ID: id, Title: title, Reads: reads},
		Look: func(ctx context.Context, d *diagnosis, r *doctor.Report) error {
			d.report = r
			return look(d, ctx)
		},
	}
}

// ofHost are the checks of a host, with or without a cluster.
func ofHost() []doctor.Check[*diagnosis] {
	return []doctor.Check[*diagnosis]{
		check("cluster-engine", "engine", "version and state of the provider", (*diagnosis).engine),
		check("cluster-host", "host", "limits, cgroups and modules of the host, for the number of nodes", (*diagnosis).host),
		check("cluster-disk", "disk", "space and inodes where the provider keeps images and volumes", (*diagnosis).engineDisk),
		check("cluster-registry", "registry", "the container of the registry", (*diagnosis).registry),
		check("cluster", "cluster", "containers with the labels of the cluster", (*diagnosis).found),
	}
}

// ofCluster are the checks of a cluster that exists.
func ofCluster() []doctor.Check[*diagnosis] {
	return []doctor.Check[*diagnosis]{
		check("cluster-nodes", "nodes", "state and last log lines of each node's container", (*diagnosis).running),
		check("cluster-ports", "ports", "ports of the host that stopped nodes need", (*diagnosis).ports),
		check("cluster-units", "units", "systemd in each node: runtime, kubelet, failed units", (*diagnosis).units),
		check("cluster-node-disk", "disk of nodes", "space and inodes of /var in each node", (*diagnosis).nodeDisks),
		check("cluster-names", "names of nodes", "the address of the control plane's name, in each node", (*diagnosis).names),
		check("cluster-control-plane", "control plane", "admin.conf, and /readyz of the API server in its node", (*diagnosis).controlPlane),
		check("cluster-api", "API", "the API server, from this host", (*diagnosis).api),
		check("cluster-kubeconfig", "kubeconfig", "context, server and authority of the kubeconfig", (*diagnosis).kubeconfig),
		check("cluster-kubernetes-nodes", "Kubernetes nodes", "Node objects, and their condition Ready", (*diagnosis).ready),
		check("cluster-dns", "DNS", "pods of CoreDNS, and a query in a node", (*diagnosis).dns),
	}
}

// Checks describe all checks.
func Checks() []doctor.Info { return slices.Concat(doctor.Infos(ofHost()), doctor.Infos(ofCluster())) }

// Examine runs all checks. A check that cannot run becomes a warning, and does not stop the others.
func Examine(ctx context.Context, c *cluster.Clusters, o Options) []finding.Finding {
	d := &diagnosis{Clusters: c, name: o.Name, options: o}
	if o.Which == nil {
		d.nodes, d.listed = inventory.Nodes(ctx, c.Provider, o.Name)
	}
	found := ofHost()
	if o.Which == nil && d.listed == nil {
		// The check of the cluster itself says something only of one that is not there.
		found = found[:len(found)-1]
	}
	all := doctor.Examine(ctx, d, found)
	if o.Which == nil && d.listed == nil {
		all = append(all, doctor.Examine(ctx, d, ofCluster())...)
	}
	return doctor.Findings(all)
}

// engine reports which engine there is.
func (d *diagnosis) engine(context.Context) error {
	d.add(finding.OK, "", strings.TrimSpace(d.Provider.Name()+" "+d.Provider.Facts().Version), "")
	return nil
}

// found reports why no cluster is examined.
func (d *diagnosis) found(context.Context) error {
	switch {
	case d.options.Which != nil:
		return d.skip(oneLine(d.options.Which))
	case !errors.Is(d.listed, errs.NotFound):
		return d.listed
	case d.options.Wanted:
		d.add(finding.Problem, d.name, errs.Message(d.listed), "berth cluster list shows those that there are, berth cluster create makes one")
	default:
		d.add(finding.OK, "", errs.Message(d.listed), "")
	}
	return nil
}

// NoEngine returns the findings if no container engine can be used.
func NoEngine(err error) []finding.Finding {
	return []finding.Finding{{
		ID: "cluster-engine", Check: "engine", Level: finding.Problem, Object: "engine", Evidence: errs.Message(err),
		Fix: "install docker, podman or nerdctl, or start its daemon; --provider names one", Docs: doctor.Info{ID: "cluster-engine"}.Docs(),
	}}
}

func (d *diagnosis) add(level finding.Level, object, evidence, fix string) {
	d.report.Add(level, object, evidence, fix)
}

// skip says why a check could not run, if another finding reports the reason.
func (d *diagnosis) skip(why string) error {
	d.report.Skip(why)
	return nil
}

// machines are the running nodes that have a systemd.
func (d *diagnosis) machines() []provider.Node {
	var all []provider.Node
	for _, n := range d.nodes {
		if n.Running && inventory.Role(n) != config.BalancerRole {
			all = append(all, n)
		}
	}
	return all
}

// output is what a command in a node writes, whatever its status; err says that it did not run or
// end in time.
func (d *diagnosis) output(ctx context.Context, node, script string) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*timeout)
	defer cancel()
	var out strings.Builder
	args := []string{"timeout", fmt.Sprint(2 * timeout.Seconds()), "sh", "-c", "( " + script + "\n) 2>&1 || :"}
	err = d.Provider.Exec(ctx, node, provider.Command{Args: args, Stdout: &out})
	if err != nil {
		err = fmt.Errorf("%s: %w", node, err)
	}
	return strings.TrimSpace(out.String()), err
}

// oneLine is an error on one line.
func oneLine(err error) string { return strings.Join(strings.Fields(errs.Message(err)), " ") }

// last are the last lines of a text, joined.
func last(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], " | ")
}
