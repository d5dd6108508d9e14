package nodecmd

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// printPlan shows a plan to people.
func printPlan(w io.Writer, plan *reconciler.Plan) error {
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
		fmt.Fprintln(w, "no longer wanted  (berth node prune, or apply --prune, brings back what was there before)")
		for _, o := range plan.Unwanted {
			fmt.Fprintf(w, "  - %s\n", o.Object)
		}
	}
	if plan.Unfinished > 0 {
		fmt.Fprintf(w, "entry %d of the history was interrupted; apply carries on\n", plan.Unfinished)
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

// printRestarts shows what restarts, and what that does to pods.
func printRestarts(w io.Writer, restarts []reconciler.Restart) {
	for _, r := range restarts {
		fmt.Fprintf(w, "restart %s  (for %s)\n", r.Unit, strings.Join(r.Because, ", "))
		if r.Disrupts != "" {
			fmt.Fprintf(w, "  ! running pods: %s\n", r.Disrupts)
		} else {
			fmt.Fprintln(w, "  running pods go on")
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
		case d.Action == provision.Create && usual(f):
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

// usual tells of what is so for nearly every new file.
func usual(f provision.Field) bool {
	switch f.Name {
	case "type":
		return f.To == "file"
	case "uid", "gid":
		return f.To == "0"
	}
	return false
}

// printBack shows a way back.
func printBack(w io.Writer, b *reconciler.Back) error {
	for _, d := range b.Diffs {
		printDiff(w, d)
	}
	printRestarts(w, b.Restarts)
	for _, stops := range b.Stops {
		fmt.Fprintf(w, "  ! running pods: %s\n", stops)
	}
	var err error
	if len(b.Diffs) == 0 {
		_, err = fmt.Fprintln(w, "All is as it was.")
	}
	return err
}

// printOutcome shows what was done.
func printOutcome(w io.Writer, out *reconciler.Outcome) error {
	for _, warning := range out.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	for _, object := range out.Repaired {
		fmt.Fprintf(w, "repaired all the same: %s\n", object)
	}
	for _, left := range out.Left {
		fmt.Fprintf(w, "left as it is: %s: %s\n", left.Object, left.Reason)
	}
	if out.Number == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "Entry %d of the history: %s.\n", out.Number, out.Result)
	return err
}

// confirm asks on a terminal; elsewhere --yes is needed.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return fmt.Errorf("nothing was changed: there is no terminal to ask on; --yes says yes: %w", errs.Invalid)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && answer == "" {
		return fmt.Errorf("nothing was changed: no answer: %w", err)
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return fmt.Errorf("nothing was changed, as you wish: %w", errs.Invalid)
	}
	return nil
}
