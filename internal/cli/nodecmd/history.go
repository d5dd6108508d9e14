package nodecmd

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/journal"
)

// newHistory lists what was done.
func newHistory() *cobra.Command {
	var at places
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "history [NUMBER]",
		Short: "List what was done to the machine, or show one entry with its node file",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := at.open(cmd)
			if err != nil {
				return err
			}
			defer s.close()
			history := s.engine.Journal().History()
			if len(args) == 0 {
				return output.Print(cmd.OutOrStdout(), history, func(w io.Writer) error { return printHistory(w, history) })
			}
			n, err := entryNumber(args, history)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(history, func(e journal.Entry) bool { return e.Number == n })
			if i < 0 {
				return fmt.Errorf("entry %d is not in the history: %w", n, errs.NotFound)
			}
			return output.Print(cmd.OutOrStdout(), history[i], func(w io.Writer) error {
				return printEntry(w, s.engine.Journal(), history[i])
			})
		},
	}
	at.register(cmd, false)
	output.Register(cmd)
	return cmd
}

func printHistory(w io.Writer, history []journal.Entry) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "ENTRY\tWHEN\tWHAT\tRESULT\tTOUCHED\tBERTH")
	for _, e := range slices.Backward(history) {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%d\t%s\n", e.Number, e.Started.Local().Format(time.DateTime), what(e), result(e), len(e.Touched), e.Version)
	}
	return t.Flush()
}

func what(e journal.Entry) string {
	if e.Verb == journal.Rollback {
		return string(e.Verb) + " to " + strconv.Itoa(e.To)
	}
	return string(e.Verb)
}

func result(e journal.Entry) string {
	if e.Result == "" {
		return "interrupted"
	}
	return string(e.Result)
}

func printEntry(w io.Writer, j *journal.Journal, e journal.Entry) error {
	fmt.Fprintf(w, "entry %d: %s, %s, by berth %s\n", e.Number, what(e), result(e), e.Version)
	fmt.Fprintf(w, "started %s", e.Started.Local().Format(time.DateTime))
	if !e.Ended.IsZero() {
		fmt.Fprintf(w, ", took %s", e.Ended.Sub(e.Started).Round(10*time.Millisecond))
	}
	fmt.Fprintln(w)
	if e.Error != "" {
		fmt.Fprintf(w, "error: %s\n", e.Error)
	}
	for _, p := range e.Touched {
		was := "was not there"
		if p.State.Exists {
			was = "was there"
		}
		fmt.Fprintf(w, "  %s  (%s)\n", p.Object, was)
	}
	for _, unit := range e.Restarted {
		fmt.Fprintf(w, "  restarted %s\n", unit)
	}
	if e.Wish == "" {
		return nil
	}
	fmt.Fprintln(w, "node file:")
	r, err := j.Content(e.Wish)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}
