// Package preflight knows what `kubeadm init` and `kubeadm join` look for on a machine
// before they touch it, and what to do where they would refuse or warn. It reads only;
// checks have kubeadm's own names, so that they can be found in its output and in
// --ignore-preflight-errors.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision"
)

// Who says who objects.
type Who string

// Who objects.
const (
	Both   Who = "kubeadm init and join refuse"
	Init   Who = "kubeadm init refuses"
	Join   Who = "kubeadm join refuses"
	Nobody Who = "kubeadm warns"
)

// Objection is a reason for kubeadm to refuse a machine, or to warn of it.
type Objection struct {
	// Finding: Check is kubeadm's name of it, such as "Port-10250". Level is finding.Problem where
	// init and join refuse, else finding.Warning: what only one of them refuses may not matter on
	// this machine.
	finding.Finding
	Who Who
}

// String is all of it on one line.
func (o Objection) String() string {
	return fmt.Sprintf("%s: %s (%s); %s", o.Check, o.Evidence, o.Who, o.Fix)
}

// survey is one look at a machine.
type survey struct {
	host       provision.Host
	objections []Objection
	// joined tells that kubeadm has made a node of the machine.
	joined bool
	// version is that of the kubelet; zero where it does not say.
	version version
}

// step is one group of checks.
type step struct {
	name string
	look func(ctx context.Context, s *survey) error
	// fresh: only for a machine that is no node yet.
	fresh bool
}

// Installed reports whether kubeadm is on the machine.
func Installed(host provision.Host) bool { return program(host, "kubeadm") != "" }

// Look makes all checks that concern the machine alone. What cannot be looked at is an
// objection of its own, and stops no other. On a machine that is a node of kubeadm's already
// the checks remain that an upgrade makes, too.
func Look(ctx context.Context, host provision.Host) []Objection {
	s := &survey{host: host, joined: provision.Exists(host.Files(), kubeletConf)}
	for _, step := range []step{
		{"KubeletVersion", kubelet, false},
		{"CRI", runtimes, false},
		{"Swap", swap, false},
		{"FileContent", sysctls, false},
		{"FileExisting", programs, false},
		{"SystemVerification", kernelConfig, false},
		{"SystemVerification", cgroups, false},
		{"Hostname", hostname, false},
		{"resolv.conf", resolver, false},
		{"Firewalld", firewall, false},
		{"NumCPU", size, true},
		{"Port", ports, true},
		{"FileAvailable", leftovers, true},
	} {
		if step.fresh && s.joined {
			continue
		}
		if err := step.look(ctx, s); err != nil {
			s.add(step.name, Nobody, fmt.Sprintf("cannot be looked at: %v", err), "kubeadm may see more")
		}
	}
	return s.objections
}

func (s *survey) add(check string, who Who, evidence, fix string) {
	level := finding.Warning
	if who == Both {
		level = finding.Problem
	}
	s.objections = append(s.objections, Objection{finding.Finding{Check: check, Level: level, Evidence: evidence, Fix: fix}, who})
}

// dirs is where programs of a node lie; the machine's PATH, and what immutable systems add.
func dirs() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/bin", "/home/kubernetes/bin"}
}

// program is the path of a program, "" where the machine has none.
func program(host provision.Host, name string) string {
	for _, dir := range dirs() {
		if at := path.Join(dir, name); provision.Exists(host.Files(), at) {
			return at
		}
	}
	return ""
}

// readLimit bounds what is read of one file.
const readLimit = 4 << 20

// text reads a file; "" where it is not there.
func text(host provision.Host, name string) (string, error) {
	r, err := host.Files().Open(name)
	if errors.Is(err, errs.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", name, err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, readLimit))
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", name, err)
	}
	return string(data), nil
}

// missing lists those of want that are not in have.
func missing(want, have []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(have, name) })
}

// active reports whether a unit runs; one that nobody knows does not.
func (s *survey) active(ctx context.Context, unit string) (bool, error) {
	state, err := s.host.Units().State(ctx, unit)
	return state.Active == "active", errs.IgnoreNotFound(err)
}

func list(names []string) string { return strings.Join(names, ", ") }
