package clustercmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/local"
)

// newNodeRemove removes nodes.
func newNodeRemove() *cobra.Command {
	var s session.Session
	var o cluster.ApplyOptions
	cmd := &cobra.Command{
		Use:     "remove NODE...",
		Aliases: []string{"rm"},
		Short:   "Drain nodes and remove them from a cluster, with their disks",
		Long: "remove drains each node as kubectl drain does, until its pods have ended or --drain has passed. It takes a control\n" +
			"plane out of the load balancer and etcd before it removes the container. It also removes control planes that do\n" +
			"not run.",
		Example: "  berth cluster node remove --name dev dev-worker2",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.UseCluster(cmd, nil, func(ctx context.Context, c *cluster.Clusters, name string) error {
				release, err := local.Lock(c.Provider, name)
				if err != nil {
					return err
				}
				defer release()
				return c.RemoveNodes(ctx, name, args, o)
			})
		},
	}
	s.AddFlags(cmd)
	cmd.ValidArgsFunction = s.CompleteNodes()
	addChangeFlags(cmd, &o)
	return cmd
}
