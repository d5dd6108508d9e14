// Package finding is what a doctor, or a check of a host, says of a node, a cluster or a host.
package finding

import "slices"

// Level is the severity of a finding.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // works, and may not for long
	Problem Level = "problem" // pods do not start, or do not work
)

// Finding is the result of one check.
type Finding struct {
	// ID is the check's in docs/doctor.md. It is empty for what no doctor has checked.
	ID    string `json:"id,omitempty"`
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Object is what the finding is about: a file, a unit, a sysctl, a mount.
	Object string `json:"object,omitempty"`
	// Evidence is what was seen, and where.
	Evidence string `json:"evidence,omitempty"`
	// Fix is what to do; empty when all is well.
	Fix string `json:"fix,omitempty"`
	// Skipped is why the check had nothing to examine, with the level ok, or why it did not run, with the level warning.
	Skipped string `json:"skipped,omitempty"`
	// Docs is the page and the anchor that describe the check; empty when all is well.
	Docs string `json:"docs,omitempty"`
	// Repair is what `berth doctor --repair` does about it; empty when it does nothing.
	Repair string `json:"repair,omitempty"`
	// Repaired: the repair was done.
	Repaired bool `json:"repaired,omitempty"`
	// Unrepaired is why the repair was not done, though it was wanted.
	Unrepaired string `json:"unrepaired,omitempty"`
}

// HasProblem reports whether there is a problem among findings that is not repaired.
func HasProblem(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Level == Problem && !f.Repaired })
}
