package nodecmd

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/machine"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// status is the state of the machine compared with its node file.
type status struct {
	// Last is the newest entry; nil when there is none.
	Last *journal.Entry `json:"last"`
	// Interrupted is the newest entry that was interrupted, until one after it ends well; 0 for none.
	Interrupted int `json:"interrupted,omitempty"`
	// Owned is the number of objects that are ours.
	Owned int `json:"owned"`
	// Pending lists units whose restart is due.
	Pending []string `json:"pendingRestarts,omitempty"`
	// Drift is the number of objects that are not as wanted; -1 without a node file.
	Drift int `json:"drift"`
	// Unwanted is the number of objects that are ours and not wanted any more.
	Unwanted int `json:"unwanted"`
	// Busy names the process that changes the machine now.
	Busy string `json:"busy,omitempty"`
	// Damaged is the number of records of the journal that cannot be read.
	Damaged int `json:"damagedRecords,omitempty"`
}

// newStatus shows the last apply and the drift.
func newStatus() *cobra.Command {
	var at session.Flags
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the last apply, and the drift of the machine from its node file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := at.Open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			st, err := readStatus(cmd, &at, s)
			if err != nil {
				return err
			}
			return output.Print(cmd.OutOrStdout(), st, func(w io.Writer) error { return st.print(w) })
		},
	}
	at.Register(cmd, true)
	output.Register(cmd)
	return cmd
}

func readStatus(cmd *cobra.Command, p *session.Flags, s *session.Session) (status, error) {
	j := s.Reconciler.Journal()
	st := status{Owned: len(j.Owned()), Pending: j.Pending(), Interrupted: j.Interrupted(), Drift: -1, Damaged: j.Bad()}
	if last, ok := j.Last(); ok {
		last.Touched = nil
		shown, err := s.Reconciler.ShownEntry(last)
		if err != nil {
			return st, err
		}
		st.Last = &shown
	}
	var err error
	if st.Busy, err = machine.Busy(p.Root); err != nil {
		return st, err
	}
	target, _, err := p.Target(cmd.Context(), cmd, s)
	if errors.Is(err, errs.NotFound) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	plan, err := s.Reconciler.Plan(cmd.Context(), target)
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
		fmt.Fprintf(w, "entry %d (%s) was interrupted; the next apply continues\n", st.Last.Number, what(*st.Last))
	default:
		fmt.Fprintf(w, "entry %d: %s, %s, %s\n", st.Last.Number, what(*st.Last), result(*st.Last), st.Last.Started.Local().Format(time.DateTime))
	}
	if st.Busy == "" && st.Interrupted > 0 && st.Interrupted != st.Last.Number {
		fmt.Fprintf(w, "entry %d was interrupted, and its changes are still there; the next apply continues\n", st.Interrupted)
	}
	if st.Busy != "" {
		fmt.Fprintln(w, st.Busy)
	}
	if st.Owned > 0 {
		fmt.Fprintf(w, "berth manages %d objects\n", st.Owned)
	}
	switch {
	case st.Drift > 0:
		fmt.Fprintf(w, "%d have drifted from the node file (berth node diff)\n", st.Drift)
	case st.Drift == 0:
		fmt.Fprintln(w, "the machine matches the node file")
	}
	if st.Unwanted > 0 {
		fmt.Fprintf(w, "%d are no longer wanted (berth node prune)\n", st.Unwanted)
	}
	if len(st.Pending) > 0 {
		fmt.Fprintf(w, "pending restarts: %s\n", strings.Join(st.Pending, ", "))
	}
	if st.Damaged > 0 {
		fmt.Fprintf(w, "%d damaged records of the journal were skipped\n", st.Damaged)
	}
	return nil
}
