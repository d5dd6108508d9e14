package nodecmd

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/provision/doctor"
)

// newDoctor explains a sick node.
func newDoctor() *cobra.Command {
	var output show.Flag
	var opts doctor.Options
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Explain a sick node, whoever set it up: what is wrong, how one sees it, what to do",
		Long:  "doctor changes nothing and needs no node file. Its exit code is 1 when there is a problem.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at := places{root: "/"}
			s, err := at.open(cmd)
			if err != nil {
				return err
			}
			defer s.close()
			findings := doctor.Examine(cmd.Context(), s.host, opts)
			err = output.Print(cmd.OutOrStdout(), findings, func(w io.Writer) error { return show.Findings(w, findings) })
			if err != nil {
				return err
			}
			if finding.HasProblem(findings) {
				return exitcode.Of(1)
			}
			return nil
		},
	}
	output.Register(cmd)
	cmd.Flags().BoolVar(&opts.Kubeadm, "kubeadm", false, "what kubeadm init and join would not like, also where kubeadm is not installed")
	return cmd
}
