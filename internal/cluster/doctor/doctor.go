// Package doctor explains a sick cluster, or a host that cannot have one: each check says
// what it saw, and what to do. It changes nothing, and looks at clusters that are half made,
// too.
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

// patience bounds each question to something that may not answer.
const patience = 10 * time.Second

// diagnosis is one run over all checks.
type diagnosis struct {
	*cluster.Clusters
	name     string
	check    string // that runs
	findings []finding.Finding
	// nodes are the cluster's containers, sorted by name.
	nodes []provider.Node
	// made: kubeadm has made a cluster of them. first is a control plane of it that runs.
	made  bool
	first string
	// answers: the API does, in its node; known are the nodes that it knows, nil where it
	// does not answer this host.
	answers bool
	known   []kubeapi.Node
}

// Options say what is examined.
type Options struct {
	// Name is the cluster; Wanted: somebody has asked for it, so that it has to be there.
	Name   string
	Wanted bool
	// Which is that there are several and nobody has said which: only the host is examined, and
	// a finding tells it. nil otherwise.
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

// NoEngine is what there is to say where no container engine can be used.
func NoEngine(err error) []finding.Finding {
	return []finding.Finding{{
		Check: "engine", Level: finding.Problem, Evidence: err.Error(),
		Fix: "install docker, podman or nerdctl, or start its daemon; --provider names one",
	}}
}

// run makes one check.
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

// skip says why a check could not be made, where another finding tells of it.
func (d *diagnosis) skip(why string) error {
	d.add(finding.Warning, "not checked: "+why, "")
	return nil
}

// machines are the nodes that run and have a systemd.
func (d *diagnosis) machines() []provider.Node {
	var all []provider.Node
	for _, n := range d.nodes {
		if n.Running && inventory.Role(n) != config.BalancerRole {
			all = append(all, n)
		}
	}
	return all
}

// ask is what a command in a node says, whatever its status; err is that it did not run or
// end in time.
func (d *diagnosis) ask(ctx context.Context, node, script string) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	var out strings.Builder
	args := []string{"timeout", fmt.Sprint(2 * patience.Seconds()), "sh", "-c", "( " + script + "\n) 2>&1 || :"}
	err = d.Provider.Exec(ctx, node, provider.Command{Args: args, Stdout: &out})
	if err != nil {
		err = fmt.Errorf("%s: %w", node, err)
	}
	return strings.TrimSpace(out.String()), err
}

// oneLine is an error for people who have many to read.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// last are the last lines of a text, joined.
func last(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], " | ")
}
