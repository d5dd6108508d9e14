package nodecmd

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/daemon"
	"github.com/berthrun/berth/internal/cli/doctorcmd"
	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
	machine "github.com/berthrun/berth/internal/provision/doctor"
)

// newDoctor diagnoses a node.
func newDoctor() *cobra.Command {
	var output show.Flag
	var kubeadm bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose this node, also one that berth did not set up: each problem with its evidence and its fix",
		Long: "doctor changes nothing and needs no node file. Its exit code is 1 if it finds a problem. `berth doctor` also examines\n" +
			"what berth needs of the machine, and what it has left there.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at := session.Flags{Root: "/"}
			s, err := at.Open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			facts := machine.New(cmd.Context(), s.Host, machine.Options{Berth: doctorcmd.Load().Berth(), Space: machine.SpaceOf, HostNet: daemon.HostNet})
			findings := doctor.Findings(doctor.Examine(cmd.Context(), facts, machine.OfNode(kubeadm || machine.WithKubeadm(s.Host))))
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
	cmd.Flags().BoolVar(&kubeadm, "kubeadm", false, "also run the preflight checks of kubeadm init and join, even if kubeadm is not installed")
	return cmd
}
