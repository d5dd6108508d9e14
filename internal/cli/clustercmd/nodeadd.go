package clustercmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/local"
)

// newNodeAdd adds nodes.
func newNodeAdd() *cobra.Command {
	var s session.Session
	var o cluster.ApplyOptions
	var a config.Addition
	var role string
	cmd := &cobra.Command{
		Use:   "add [NAME]",
		Short: "Add nodes to a cluster",
		Long: "add creates nodes that join the cluster NAME. Their names come from the cluster and their role, from --as, or from\n" +
			"--pool. If a step fails, or on Ctrl-C, add removes what it has made.",
		Example: "  berth cluster node add dev\n" +
			"  berth cluster node add dev --role control-plane --count 2 --wait 2m\n" +
			"  berth cluster node add dev --pool web",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.Role.UnmarshalText([]byte(role)); err != nil {
				return err
			}
			var added []string
			o.Agree = func(c changes.Changes) error {
				added = c.Add
				return nil
			}
			return s.UseCluster(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
				release, err := local.Lock(c.Provider, name)
				if err != nil {
					return err
				}
				defer release()
				err = c.AddNodes(ctx, name, a, o)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), strings.Join(added, "\n"))
				}
				return err
			})
		},
	}
	s.AddFlags(cmd)
	flags := cmd.Flags()
	flags.IntVar(&a.Count, "count", 1, "number of nodes")
	flags.StringVar(&role, "role", "", "worker or control-plane; empty: worker")
	flags.StringVar(&a.Pool, "pool", "", "pool of the cluster file to add the nodes to")
	flags.StringVar(&a.Name, "as", "", "part of the nodes' names after the cluster's name; empty: their role")
	flags.StringVar(&a.Image, "image", "", "node image; empty: that of the first node of the role")
	flags.StringToStringVar(&a.Labels, "labels", nil, "Kubernetes labels of the nodes: a=b,c=d")
	session.AddWait(cmd, &o.Wait)
	return cmd
}
