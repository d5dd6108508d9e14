package nodecmd

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// newHistory lists the changes to the machine.
func newHistory() *cobra.Command {
	var at session.Flags
	var output show.Flag
	var secrets bool
	cmd := &cobra.Command{
		Use:   "history [NUMBER]",
		Short: "List the changes to the machine, or show one entry with its node file",
		Long: "history shows size and a short hash in place of content that not every user may read, also in the node file.\n" +
			"Each run makes the hash with another key.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := at.Open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			history := s.Reconciler.Journal().History()
			shown := make([]journal.Entry, len(history))
			for i := range history {
				if shown[i], err = s.Reconciler.ShownEntry(history[i]); err != nil {
					return err
				}
			}
			if len(args) == 0 {
				return output.Print(cmd.OutOrStdout(), shown, func(w io.Writer) error { return printHistory(w, shown) })
			}
			n, err := entryNumber(args, history)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(history, func(e journal.Entry) bool { return e.Number == n })
			if i < 0 {
				return fmt.Errorf("entry %d is not in the history: %w", n, errs.NotFound)
			}
			return output.Print(cmd.OutOrStdout(), shown[i], func(w io.Writer) error {
				if err := printEntry(w, history[i]); err != nil {
					return err
				}
				return printNodeFile(s, w, history[i].NodeFile, secrets)
			})
		},
	}
	at.Register(cmd, false)
	output.Register(cmd)
	cmd.Flags().BoolVar(&secrets, "show-secrets", false, "print the node file as it was applied, with the secrets in it")
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

func printEntry(w io.Writer, e journal.Entry) error {
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
	return nil
}

// printNodeFile shows the node file of an entry.
func printNodeFile(s *session.Session, w io.Writer, wish string, secrets bool) error {
	if wish == "" {
		return nil
	}
	fmt.Fprintln(w, "node file:")
	r, err := s.Reconciler.Journal().Content(wish)
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, nodefile.MaxSize))
	if err != nil {
		return fmt.Errorf("cannot read the node file: %w", err)
	}
	if !secrets {
		text, err = redacted(s.Host, text)
	}
	if err != nil {
		fmt.Fprintf(w, "  (not shown: this berth cannot find the secrets in it; --show-secrets prints it: %v)\n", err)
		return nil
	}
	_, err = w.Write(text)
	return err
}

// redacted is a node file without credentials, also in settings without a field of their own, such
// as runtime.config.additions.
func redacted(host provision.Host, text []byte) ([]byte, error) {
	text, err := nodefile.Redact(text, func(value string) string {
		return "(not shown: " + provision.Sealed(host, int64(len(value)), value) + ")"
	})
	return []byte(provision.Conceal(host, string(text))), err
}
