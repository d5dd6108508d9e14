// Package podcmd holds `berth pod` and its subcommands. They are plain CRI clients.
package podcmd

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/podrun"
)

// commands share the endpoint and where `berth pod run` keeps volumes and logs.
type commands struct {
	endpoint              connect.Flag
	volumeBase, logBase   string
	claimBase, seccompDir string
}

// New returns `berth pod`.
func New() *cobra.Command {
	var c commands
	cmd := &cobra.Command{
		Use:   "pod",
		Short: "Run and manage pods",
		Long: "POD is a name, NAMESPACE/NAME, an ID, or a prefix of an ID. -c selects a container of the pod; a pod with one\n" +
			"container needs no -c.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.endpoint.Register(cmd)
	cmd.PersistentFlags().StringVar(&c.volumeBase, "volume-dir", podrun.DefaultVolumeBase, "where run keeps the volumes of pods")
	cmd.PersistentFlags().StringVar(&c.logBase, "log-dir", podrun.DefaultLogBase, "where run keeps the logs of pods")
	cmd.PersistentFlags().StringVar(&c.claimBase, "claim-dir", podrun.DefaultClaimBase, "where run keeps a directory for each PersistentVolumeClaim")
	cmd.PersistentFlags().StringVar(&c.seccompDir, "seccomp-dir", podrun.DefaultSeccompDir, "where run finds the seccomp profiles that pods name by a relative path")
	cmd.AddCommand(c.newRun(), c.newList(), c.newInspect(), c.newLogs(), c.newExec(), c.newAttach(),
		c.newPortForward(), c.newStats(), c.newStop(), c.newRemove())
	return cmd
}
