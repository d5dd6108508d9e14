package clustercmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/images"
	"github.com/berthrun/berth/internal/errs"
)

// newLoad puts images into nodes.
func newLoad() *cobra.Command {
	var s session
	var o images.Options
	cmd := &cobra.Command{
		Use:   "load [IMAGE...]",
		Short: "Put images of the container engine, or of archives, into the nodes of a cluster",
		Example: "  berth cluster load app:1 web:2\n" +
			"  berth cluster load --archive app.tar --nodes dev-worker\n" +
			"  ssh builder podman save app:1 | berth cluster load --archive -",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Images, o.Stdin = args, cmd.InOrStdin()
			if len(o.Images)+len(o.Archives) == 0 {
				return fmt.Errorf("nothing to load: name images, or files with --archive: %w", errs.Invalid)
			}
			return load(cmd, &s, o)
		},
	}
	s.add(cmd)
	cmd.Flags().StringSliceVar(&o.Archives, "archive", nil, "file as docker save or OCI tools write it, plain or compressed; - is standard input")
	cmd.Flags().StringSliceVar(&o.Nodes, "nodes", nil, nodesHelp)
	//nolint:errcheck // it fails only for a flag that is not there
	cmd.RegisterFlagCompletionFunc("nodes", s.nodes())
	cmd.AddCommand(newLoadOfKind()...)
	return cmd
}

// load loads images into a cluster that nobody changes meanwhile. Others may load, too.
func load(cmd *cobra.Command, s *session, o images.Options) error {
	return s.useOne(cmd, nil, func(ctx context.Context, c *cluster.Clusters, name string) error {
		release, err := beside(c.Provider, name)
		if err != nil {
			return err
		}
		defer release()
		return images.Loader{Provider: c.Provider, Reporter: c.Reporter}.Load(ctx, name, o)
	})
}

const nodesHelp = "nodes that get the images; empty: all"

// newLoadOfKind are `load docker-image` and `load image-archive`.
func newLoadOfKind() []*cobra.Command {
	var all []*cobra.Command
	for _, what := range []struct {
		use, short string
		into       func(*images.Options, []string)
	}{
		{"docker-image IMAGE...", "Put images of the container engine into the nodes of a cluster", func(o *images.Options, args []string) { o.Images = args }},
		{"image-archive FILE...", "Put images of archives into the nodes of a cluster", func(o *images.Options, args []string) { o.Archives = args }},
	} {
		s := session{ofKind: true}
		var o images.Options
		cmd := &cobra.Command{
			Use:   what.use,
			Short: what.short,
			Args:  cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				o.Stdin = cmd.InOrStdin()
				what.into(&o, args)
				return load(cmd, &s, o)
			},
		}
		s.add(cmd)
		cmd.Flags().StringSliceVar(&o.Nodes, "nodes", nil, nodesHelp)
		//nolint:errcheck // it fails only for a flag that is not there
		cmd.RegisterFlagCompletionFunc("nodes", s.nodes())
		all = append(all, ofKind(cmd))
	}
	return all
}
