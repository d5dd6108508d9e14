package clustercmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/errs"
)

// newLoad puts images into nodes.
func newLoad() *cobra.Command {
	var s session
	var o cluster.LoadOptions
	cmd := &cobra.Command{
		Use:   "load [IMAGE...]",
		Short: "Put images of the container engine, or of archives, into the nodes of a cluster",
		Example: "  berth cluster load app:1 web:2\n" +
			"  berth cluster load --archive app.tar --nodes dev-worker",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Images = args
			if len(o.Images)+len(o.Archives) == 0 {
				return fmt.Errorf("nothing to load: name images, or files with --archive: %w", errs.Invalid)
			}
			return s.useOne(cmd, nil, func(ctx context.Context, c *cluster.Clusters, name string) error { return c.Load(ctx, name, o) })
		},
	}
	s.add(cmd)
	cmd.Flags().StringSliceVar(&o.Archives, "archive", nil, "file as docker save or OCI tools write it, plain or compressed")
	cmd.Flags().StringSliceVar(&o.Nodes, "nodes", nil, "nodes that get the images; empty: all")
	return cmd
}
