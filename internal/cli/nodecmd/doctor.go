package nodecmd

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision/doctor"
)

// newDoctor diagnoses a node.
func newDoctor() *cobra.Command {
	var output show.Flag
	var opts doctor.Options
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose this node, whoever set it up: each problem with its evidence and its fix",
		Long:  "doctor changes nothing and needs no node file. Its exit code is 1 if it finds a problem.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at := session.Flags{Root: "/"}
			s, err := at.Open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			findings := doctor.Examine(cmd.Context(), s.Host, opts)
			err = output.Print(cmd.OutOrStdout(), findings, func(w io.Writer) error { return show.Findings(w, findings) })
			if err != nil {
				return err
			}
			if finding.Sick(findings) {
				return exitcode.Of(1)
			}
			return nil
		},
	}
	output.Register(cmd)
	cmd.Flags().BoolVar(&opts.Kubeadm, "kubeadm", false, "also run the preflight checks of kubeadm init and join, even if kubeadm is not installed")
	return cmd
}
