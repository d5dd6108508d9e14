package nodecmd

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/provision/engine"
)

// backing is one run of a command that brings back what was there before.
type backing struct {
	places
	output show.Flag
	yes    bool
}

func (b *backing) register(cmd *cobra.Command, withFile bool) {
	b.places.register(cmd, withFile)
	b.output.Register(cmd)
	cmd.Flags().BoolVarP(&b.yes, "yes", "y", false, "do not ask")
}

// run opens the machine to be changed, and lets f go back.
func (b *backing) run(cmd *cobra.Command, f func(ctx context.Context, s *session) error) error {
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	s, err := b.change(ctx, cmd, false)
	if err != nil {
		return err
	}
	defer s.close()
	return f(ctx, s)
}

// consent shows the way back, and asks.
func (b *backing) consent(cmd *cobra.Command, back *engine.Back, question string) error {
	return errors.Join(printBack(cmd.ErrOrStderr(), back), confirm(cmd, b.yes, question))
}

// tell shows what became of it.
func (b *backing) tell(cmd *cobra.Command, s *session, out *engine.Outcome, err error) error {
	if out == nil {
		return err
	}
	s.report.end()
	return errors.Join(err, b.output.Print(cmd.OutOrStdout(), out, func(w io.Writer) error { return printOutcome(w, out) }))
}
