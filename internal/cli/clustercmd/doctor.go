package clustercmd

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/doctor"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// newDoctor diagnoses a cluster.
func newDoctor() *cobra.Command {
	var s session.Session
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "doctor [NAME]",
		Short: "Diagnose a cluster or this host: each problem with its evidence and its fix",
		Long:  "doctor changes nothing. It also examines clusters whose creation has failed. Its exit code is 1 if it finds a problem.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			given, err := s.GivenName(args)
			if err != nil {
				return err
			}
			var findings []finding.Finding
			if engine, err := s.Provider.Open(cmd); err != nil {
				findings = doctor.NoEngine(err)
			} else if err := s.UseProvider(cmd, engine, func(ctx context.Context, c *cluster.Clusters) error {
				name, err := inventory.Resolve(ctx, c.Provider, given)
				o := doctor.Options{Name: name, Wanted: given != ""}
				if errors.Is(err, errs.Invalid) {
					o.Which = err
				} else if err != nil {
					return err
				}
				findings = doctor.Examine(ctx, c, o)
				return ctx.Err()
			}); err != nil {
				return err
			}
			if err := output.Print(cmd.OutOrStdout(), findings, func(w io.Writer) error { return show.Findings(w, findings) }); err != nil {
				return err
			}
			if finding.Sick(findings) {
				return exitcode.Of(1)
			}
			return nil
		},
	}
	s.AddFlags(cmd)
	output.Register(cmd)
	return cmd
}
