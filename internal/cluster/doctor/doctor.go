// Package doctor explains what is wrong with a cluster, or with a host that cannot have one: each
// check says what it saw, and what to do. It changes nothing, and also examines incomplete
// clusters.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// timeout bounds each request to something that may not answer.
const timeout = 10 * time.Second

// diagnosis is one run over all checks.
type diagnosis struct {
	*cluster.Clusters
	name     string
	check    string // that runs
	findings []finding.Finding
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

// Examine runs all checks. A check that cannot run becomes a warning, and does not stop the others.
func Examine(ctx context.Context, c *cluster.Clusters, o Options) []finding.Finding {
	d := &diagnosis{Clusters: c, name: o.Name}
	var err error
	if o.Which == nil {
		d.nodes, err = inventory.Nodes(ctx, c.Provider, o.Name)
	}
	d.run(ctx, "engine", func(context.Context) error {
		f := c.Provider.Facts()
		d.add(finding.OK, strings.TrimSpace(c.Provider.Name()+" "+f.Version), "")
		return nil
	})
	d.run(ctx, "host", d.host)
	d.run(ctx, "disk", d.engineDisk)
	d.run(ctx, "registry", d.registry)
	if o.Which != nil {
		d.run(ctx, "cluster", func(context.Context) error { return d.skip(oneLine(o.Which)) })
		return d.findings
	}
	if err != nil {
		d.run(ctx, "cluster", func(context.Context) error {
			if !errors.Is(err, errs.NotFound) {
				return err
			}
			if o.Wanted {
				d.add(finding.Problem, err.Error(), "berth cluster list shows those that there are, berth cluster create makes one")
			} else {
				d.add(finding.OK, err.Error(), "")
			}
			return nil
		})
		return d.findings
	}
	for _, check := range []struct {
		name string
		look func(context.Context) error
	}{
		{"nodes", d.running},
		{"ports", d.ports},
		{"units", d.units},
		{"disk of nodes", d.nodeDisks},
		{"names of nodes", d.names},
		{"control plane", d.controlPlane},
		{"API", d.api},
		{"kubeconfig", d.kubeconfig},
		{"Kubernetes nodes", d.ready},
		{"DNS", d.dns},
	} {
		d.run(ctx, check.name, check.look)
	}
	return d.findings
}

// NoEngine returns the findings if no container engine can be used.
func NoEngine(err error) []finding.Finding {
	return []finding.Finding{{
		Check: "engine", Level: finding.Problem, Evidence: err.Error(),
		Fix: "install docker, podman or nerdctl, or start its daemon; --provider names one",
	}}
}

// run runs one check.
func (d *diagnosis) run(ctx context.Context, name string, look func(context.Context) error) {
	d.check = name
	before := len(d.findings)
	if err := look(ctx); err != nil {
		d.add(finding.Warning, "cannot be checked: "+oneLine(err), "")
	}
	if len(d.findings) == before {
		d.add(finding.OK, "", "")
	}
}

func (d *diagnosis) add(level finding.Level, evidence, fix string) {
	d.findings = append(d.findings, finding.Finding{Check: d.check, Level: level, Evidence: evidence, Fix: fix})
}

// skip says why a check could not run, if another finding reports the reason.
func (d *diagnosis) skip(why string) error {
	d.add(finding.Warning, "not checked: "+why, "")
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
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// last are the last lines of a text, joined.
func last(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], " | ")
}
