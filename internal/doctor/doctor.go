// Package doctor is the registry of checks that all doctors share: what a check is, how checks
// run, and how their findings are repaired. The checks themselves are with what they look at: of
// a machine in internal/provision/doctor, of leaks in internal/leaks, of clusters in
// internal/cluster/doctor.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// Check looks at one thing. F has the facts that checks share.
type Check[F any] struct {
	Info
	// Look reports what it finds. An error says why it could not look; it becomes a warning.
	Look func(ctx context.Context, facts F, r *Report) error
}

// DocsPage describes all checks, each below an anchor with its ID.
const DocsPage = "docs/doctor.md"

// Info describes a check.
type Info struct {
	// ID is for --check and for programs: lower case, with dashes. It never changes.
	ID string
	// Title is for people.
	Title string
	// Reads says where the check looks.
	Reads string
}

// Docs is the page and the anchor that describe the check.
func (i Info) Docs() string { return DocsPage + "#" + i.ID }

// Found is a finding, with its repair.
type Found struct {
	finding.Finding
	// Mend does what Finding.Repair says; nil when nothing can be repaired. It changes nothing if the
	// finding is not true any more, and can be repeated.
	Mend func(ctx context.Context) error
}

// Report collects the findings of one check.
type Report struct {
	info  Info
	found []Found
}

// Add reports a finding: its level, the object that it is about, what was seen, and what to do.
func (r *Report) Add(level finding.Level, object, evidence, fix string) {
	r.AddFinding(finding.Finding{Level: level, Object: object, Evidence: evidence, Fix: fix})
}

// AddFinding is Add for a finding that another check has made. Its own name is kept.
func (r *Report) AddFinding(f finding.Finding) {
	f.ID = r.info.ID
	if f.Check == "" {
		f.Check = r.info.Title
	}
	if f.Level != finding.OK {
		f.Docs = r.info.Docs()
	}
	r.found = append(r.found, Found{Finding: f})
}

// AddRepairable is Add for a finding with a repair. does says what mend does, for people.
func (r *Report) AddRepairable(level finding.Level, object, evidence, fix, does string, mend func(ctx context.Context) error) {
	r.Add(level, object, evidence, fix)
	last := &r.found[len(r.found)-1]
	last.Repair, last.Mend = does, mend
}

// Skip reports that the check could not run because of something that another finding reports.
func (r *Report) Skip(why string) { r.Add(finding.Warning, "", "not checked: "+why, "") }

// NotNeeded reports that the check has nothing to examine. The same reason of several checks is shown once.
func (r *Report) NotNeeded(why string) {
	r.AddFinding(finding.Finding{Level: finding.OK, Skipped: why})
}

// NotRun is Skip for a reason that several checks share: it is shown once.
func (r *Report) NotRun(why string) {
	r.AddFinding(finding.Finding{Level: finding.Warning, Skipped: why})
}

// Examine runs checks in their order. A check that cannot run becomes a warning, and does not stop
// the others; one that finds nothing has a finding of level OK.
func Examine[F any](ctx context.Context, facts F, checks []Check[F]) []Found {
	var all []Found
	for _, c := range checks {
		all = append(all, c.examine(ctx, facts)...)
	}
	return all
}

// ExamineAtOnce is Examine for checks that wait, and whose facts are for several goroutines.
func ExamineAtOnce[F any](ctx context.Context, facts F, checks []Check[F]) []Found {
	found := make([][]Found, len(checks))
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() { found[i] = c.examine(ctx, facts) })
	}
	running.Wait()
	return slices.Concat(found...)
}

// examine returns the findings of one check, at least one.
func (c Check[F]) examine(ctx context.Context, facts F) []Found {
	r := Report{info: c.Info}
	err := errs.Guard("check "+c.ID, func() error { return c.Look(ctx, facts, &r) })
	if err != nil {
		r.Add(finding.Warning, "", "cannot be checked: "+strings.Join(strings.Fields(errs.Message(err)), " "), "")
	}
	if len(r.found) == 0 {
		r.Add(finding.OK, "", "", "")
	}
	return r.found
}

// Findings are those of found, without their repairs.
func Findings(found []Found) []finding.Finding {
	all := make([]finding.Finding, 0, len(found))
	for _, f := range found {
		all = append(all, f.Finding)
	}
	return all
}

// Repair repairs the findings that have a repair, one after the other, and notes the result in them.
// done is called after each.
func Repair(ctx context.Context, all []Found, done func(finding.Finding)) {
	for i := range all {
		f := &all[i]
		if f.Mend == nil {
			continue
		}
		if err := errs.Guard("repair of "+f.Object, func() error { return f.Mend(ctx) }); err != nil {
			f.Unrepaired = errs.Message(err)
		} else {
			f.Repaired = true
		}
		done(f.Finding)
	}
}

// Infos describe checks.
func Infos[F any](checks []Check[F]) []Info {
	all := make([]Info, 0, len(checks))
	for _, c := range checks {
		all = append(all, c.Info)
	}
	return all
}

// Select keeps the checks whose IDs are wanted, all of them where wanted is empty.
func Select[F any](checks []Check[F], wanted []string) []Check[F] {
	if len(wanted) == 0 {
		return checks
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c Check[F]) bool { return !slices.Contains(wanted, c.ID) })
}

// CheckIDs is an error of kind Invalid if a wanted ID is not among known.
func CheckIDs(wanted []string, known []Info) error {
	for _, id := range wanted {
		if !slices.ContainsFunc(known, func(i Info) bool { return i.ID == id }) {
			return fmt.Errorf("there is no check %q; `berth doctor --list` lists them: %w", id, errs.Invalid)
		}
	}
	return nil
}
