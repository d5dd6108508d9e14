// Package planview prints plans, reverts and outcomes for users.
package planview

import (
	"fmt"
	"io"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// Plan prints a plan.
func Plan(w io.Writer, plan *reconciler.Plan) error {
	count := map[provision.Action]int{}
	for _, step := range plan.Steps {
		head := step.Task
		if step.Why != "" {
			head += "  (for " + step.Why + ")"
		}
		fmt.Fprintln(w, head)
		for _, d := range step.Diffs {
			count[d.Action]++
			printDiff(w, d)
		}
		if step.Disrupts != "" {
			fmt.Fprintf(w, "  ! running pods: %s\n", step.Disrupts)
		}
	}
	printRestarts(w, plan.Restarts)
	if len(plan.Unwanted) > 0 {
		fmt.Fprintln(w, "no longer wanted  (berth node prune, or apply --prune, restores the state from before)")
		for _, o := range plan.Unwanted {
			fmt.Fprintf(w, "  - %s\n", o.Object)
		}
	}
	if plan.Unfinished > 0 {
		fmt.Fprintf(w, "entry %d of the history was interrupted; apply continues\n", plan.Unfinished)
	}
	if plan.Empty() {
		_, err := fmt.Fprintln(w, "Nothing to change.")
		return err
	}
	var parts []string
	for _, action := range []provision.Action{provision.Create, provision.Modify, provision.Delete, provision.Fetch, provision.Run} {
		if count[action] > 0 {
			parts = append(parts, fmt.Sprintf("%d to %s", count[action], action))
		}
	}
	if n := len(plan.Restarts); n > 0 {
		parts = append(parts, fmt.Sprintf("%d to restart", n))
	}
	_, err := fmt.Fprintf(w, "Plan: %s.\n", strings.Join(parts, ", "))
	return err
}

// printRestarts shows the restarts, and their effect on pods.
func printRestarts(w io.Writer, restarts []reconciler.Restart) {
	for _, r := range restarts {
		fmt.Fprintf(w, "restart %s  (for %s)\n", r.Unit, strings.Join(r.Because, ", "))
		if r.Disrupts != "" {
			fmt.Fprintf(w, "  ! running pods: %s\n", r.Disrupts)
		} else {
			fmt.Fprintln(w, "  running pods keep running")
		}
	}
}

// printDiff shows one object.
func printDiff(w io.Writer, d provision.Diff) {
	mark := map[provision.Action]string{
		provision.Create: "+", provision.Modify: "~", provision.Delete: "-", provision.Fetch: "<", provision.Run: "*",
	}[d.Action]
	fmt.Fprintf(w, "  %s %s %s\n", mark, d.Object, d.Reason)
	for _, f := range d.Fields {
		switch {
		case d.Action == provision.Create && isDefault(f):
		case f.From == "":
			fmt.Fprintf(w, "      %s: %s\n", f.Name, f.To)
		case f.To == "":
			fmt.Fprintf(w, "      %s: %s → none\n", f.Name, f.From)
		default:
			fmt.Fprintf(w, "      %s: %s → %s\n", f.Name, f.From, f.To)
		}
	}
	for line := range strings.Lines(d.Text) {
		if !strings.HasPrefix(line, "diff ") {
			fmt.Fprintf(w, "      %s", line)
		}
	}
}

// isDefault reports whether a field is the same for nearly every new file.
func isDefault(f provision.Field) bool {
	switch f.Name {
	case "type":
		return f.To == "file"
	case "uid", "gid":
		return f.To == "0"
	}
	return false
}

// Back prints what is restored.
func Back(w io.Writer, b *reconciler.Back) error {
	for _, d := range b.Diffs {
		printDiff(w, d)
	}
	printRestarts(w, b.Restarts)
	for _, stops := range b.Stops {
		fmt.Fprintf(w, "  ! running pods: %s\n", stops)
	}
	var err error
	if len(b.Diffs) == 0 {
		_, err = fmt.Fprintln(w, "There is nothing to restore.")
	}
	return err
}

// Outcome prints what was done.
func Outcome(w io.Writer, out *reconciler.Outcome) error {
	for _, warning := range out.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	for _, object := range out.Repaired {
		fmt.Fprintf(w, "also repaired: %s\n", object)
	}
	for _, left := range out.Left {
		fmt.Fprintf(w, "left unchanged: %s: %s\n", left.Object, left.Reason)
	}
	if out.Number == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "Entry %d of the history: %s.\n", out.Number, out.Result)
	return err
}
