package nodecmd

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/machine"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// status is how the machine stands to its node file.
type status struct {
	// Last is the newest entry; nil when there is none.
	Last *journal.Entry `json:"last"`
	// Owned is the number of objects that are ours.
	Owned int `json:"owned"`
	// Pending lists units whose restart is due.
	Pending []string `json:"pendingRestarts,omitempty"`
	// Drift is the number of objects that are not as wanted; -1 when there is no file to tell.
	Drift int `json:"drift"`
	// Unwanted is the number of objects that are ours and not wanted any more.
	Unwanted int `json:"unwanted"`
	// Busy says who changes the machine now.
	Busy string `json:"busy,omitempty"`
	// Damaged is the number of records of the journal that cannot be read.
	Damaged int `json:"damagedRecords,omitempty"`
}

// newStatus tells how the machine stands to its file.
func newStatus() *cobra.Command {
	var at places
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell the last apply, and whether the machine is still as the node file says",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := at.open(cmd)
			if err != nil {
				return err
			}
			defer s.close()
			st, err := at.status(cmd, s)
			if err != nil {
				return err
			}
			return output.Print(cmd.OutOrStdout(), st, func(w io.Writer) error { return st.print(w) })
		},
	}
	at.register(cmd, true)
	output.Register(cmd)
	return cmd
}

func (p *places) status(cmd *cobra.Command, s *session) (status, error) {
	j := s.reconciler.Journal()
	st := status{Owned: len(j.Owned()), Pending: j.Pending(), Drift: -1, Damaged: j.Bad()}
	if last, ok := j.Last(); ok {
		last.Touched = nil
		shown, err := s.reconciler.ShownEntry(last)
		if err != nil {
			return st, err
		}
		st.Last = &shown
	}
	var err error
	if st.Busy, err = machine.Busy(p.root); err != nil {
		return st, err
	}
	target, _, err := p.target(cmd.Context(), cmd, s)
	if errors.Is(err, errs.NotFound) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	plan, err := s.reconciler.Plan(cmd.Context(), target)
	if err != nil {
		return st, err
	}
	st.Drift, st.Unwanted = drift(plan), len(plan.Unwanted)
	return st, nil
}

func drift(plan *reconciler.Plan) int {
	n := 0
	for _, step := range plan.Steps {
		n += len(step.Diffs)
	}
	return n
}

func (st status) print(w io.Writer) error {
	switch {
	case st.Last == nil:
		fmt.Fprintln(w, "berth has not changed this machine.")
	case st.Last.Result == "" && st.Busy == "":
		fmt.Fprintf(w, "entry %d (%s) was interrupted; the next apply carries on\n", st.Last.Number, what(*st.Last))
	default:
		fmt.Fprintf(w, "entry %d: %s, %s, %s\n", st.Last.Number, what(*st.Last), result(*st.Last), st.Last.Started.Local().Format(time.DateTime))
	}
	if st.Busy != "" {
		fmt.Fprintln(w, st.Busy)
	}
	if st.Owned > 0 {
		fmt.Fprintf(w, "%d objects are berth's\n", st.Owned)
	}
	switch {
	case st.Drift > 0:
		fmt.Fprintf(w, "%d are not as the node file says (berth node diff)\n", st.Drift)
	case st.Drift == 0:
		fmt.Fprintln(w, "the machine is as the node file says")
	}
	if st.Unwanted > 0 {
		fmt.Fprintf(w, "%d are no longer wanted (berth node prune)\n", st.Unwanted)
	}
	if len(st.Pending) > 0 {
		fmt.Fprintf(w, "restarts that are due: %s\n", strings.Join(st.Pending, ", "))
	}
	if st.Damaged > 0 {
		fmt.Fprintf(w, "%d records of the journal are damaged and were passed over\n", st.Damaged)
	}
	return nil
}
