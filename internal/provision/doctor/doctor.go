// Package doctor explains what is wrong with a node: each check says what it saw, and what to do.
// It only reads, needs no node file, and also checks nodes that berth did not set up.
package doctor

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/preflight"
)

// The doctor's findings have the type of every doctor.
type (
	Level   = finding.Level
	Finding = finding.Finding
)

// The levels.
const (
	OK      = finding.OK
	Warning = finding.Warning
	Problem = finding.Problem
)

// check looks at one thing and adds what it finds.
type check struct {
	name string
	look func(ctx context.Context, d *diagnosis) error
}

// diagnosis is one run over all checks.
type diagnosis struct {
	host     provision.Host
	name     string // of the running check
	findings []Finding
	// kubelet is what its configuration says; read once.
	kubelet kubelet.Kubelet
	// runtimes are those that answer, by socket.
	runtimes []runtime
}

// Options adds optional checks.
type Options struct {
	// Kubeadm makes the checks of kubeadm's preflight also where kubeadm is not installed.
	Kubeadm bool
}

// Examine runs all checks. A check that cannot run becomes a warning, and does not stop the others.
func Examine(ctx context.Context, host provision.Host, opts Options) []Finding {
	d := &diagnosis{host: host}
	checks := []check{
		{"services", services},
		{"runtime", findRuntimes},
		{"kubelet", readKubelet},
		{"kubelet and runtime", kubeletFits},
		{"network", network},
		{"kernel", kernel},
		{"watchers of files", watchers},
		{"swap", swap},
		{"name resolution", resolver},
		{"disk", disk},
	}
	if opts.Kubeadm || preflight.Installed(host) {
		checks = append(checks, check{"kubeadm", kubeadm})
	}
	for _, c := range checks {
		d.name = c.name
		before := len(d.findings)
		if err := c.look(ctx, d); err != nil {
			d.add(Warning, fmt.Sprintf("cannot be checked: %v", err), "")
		}
		if len(d.findings) == before {
			d.add(OK, "", "")
		}
	}
	return d.findings
}

func (d *diagnosis) add(level Level, evidence, fix string) {
	d.findings = append(d.findings, Finding{Check: d.name, Level: level, Evidence: evidence, Fix: fix})
}

// kubeadm finds what kubeadm init and join object to, each by kubeadm's own name.
func kubeadm(ctx context.Context, d *diagnosis) error {
	for _, o := range preflight.Look(ctx, d.host) {
		f := o.Finding
		f.Check, f.Evidence = "kubeadm "+f.Check, fmt.Sprintf("%s: %s", f.Evidence, o.Who)
		d.findings = append(d.findings, f)
	}
	return nil
}
