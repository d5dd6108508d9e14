// Package doctor explains a sick node: each check says what it saw, and what to do. It
// reads only, needs no node file, and looks at nodes that berth did not set up, too.
package doctor

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // works, and may not for long
	Problem Level = "problem" // pods do not start, or do not work
)

// Finding is what one check found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Evidence is what was seen, and where.
	Evidence string `json:"evidence,omitempty"`
	// Fix is what to do; empty when all is well.
	Fix string `json:"fix,omitempty"`
}

// check looks at one thing and adds what it finds.
type check struct {
	name string
	look func(ctx context.Context, d *diagnosis) error
}

// diagnosis is one run over all checks.
type diagnosis struct {
	host     provision.Host
	name     string // of the check that runs
	findings []Finding
	// kubelet is what its configuration says; read once.
	kubelet kubelet.Kubelet
	// runtimes are those that answer, by socket.
	runtimes []runtime
}

// Examine runs all checks. One that cannot be made is a warning of its own, and stops
// no other.
func Examine(ctx context.Context, host provision.Host) []Finding {
	d := &diagnosis{host: host}
	for _, c := range []check{
		{"services", services},
		{"runtime", findRuntimes},
		{"kubelet", readKubelet},
		{"kubelet and runtime", kubeletFits},
		{"network", network},
		{"kernel", kernel},
		{"swap", swap},
		{"name resolution", resolver},
		{"disk", disk},
	} {
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
