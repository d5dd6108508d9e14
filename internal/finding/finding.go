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
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Evidence is what was seen, and where.
	Evidence string `json:"evidence,omitempty"`
	// Fix is what to do; empty when all is well.
	Fix string `json:"fix,omitempty"`
}

// HasProblem reports whether there is a problem among findings.
func HasProblem(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Level == Problem })
}
