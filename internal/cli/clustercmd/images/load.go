package images

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/images"
	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/errs"
)

// NewLoad returns `load`.
func NewLoad() *cobra.Command {
	var s session.Session
	var o images.Options
	cmd := &cobra.Command{
		Use:   "load [IMAGE...]",
		Short: "Load images of the container engine, or of archives, into the nodes of a cluster",
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
	s.AddFlags(cmd)
	cmd.Flags().StringSliceVar(&o.Archives, "archive", nil, "archive of docker save or OCI tools, plain or compressed; - is standard input")
	cmd.Flags().StringSliceVar(&o.Nodes, "nodes", nil, nodesHelp)
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("nodes", s.CompleteNodes())
	cmd.AddCommand(NewLoadOfKind()...)
	return cmd
}

// load loads images into a cluster, under a shared lock: several processes may load at the same
// time.
func load(cmd *cobra.Command, s *session.Session, o images.Options) error {
	return s.UseCluster(cmd, nil, func(ctx context.Context, c *cluster.Clusters, name string) error {
		release, err := local.LockShared(c.Provider, name)
		if err != nil {
			return err
		}
		defer release()
		return images.Loader{Provider: c.Provider, Reporter: c.Reporter}.Load(ctx, name, o)
	})
}

const nodesHelp = "nodes to load the images into; empty: all"

// NewLoadOfKind returns kind's `load docker-image` and `load image-archive`.
func NewLoadOfKind() []*cobra.Command {
	var all []*cobra.Command
	for _, what := range []struct {
		use, short string
		into       func(*images.Options, []string)
	}{
		{"docker-image IMAGE...", "Load images of the container engine into the nodes of a cluster", func(o *images.Options, args []string) { o.Images = args }},
		{"image-archive FILE...", "Load images of archives into the nodes of a cluster", func(o *images.Options, args []string) { o.Archives = args }},
	} {
		s := session.Session{OfKind: true}
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
		s.AddFlags(cmd)
		cmd.Flags().StringSliceVar(&o.Nodes, "nodes", nil, nodesHelp)
		//nolint:errcheck // it fails only for an unknown flag
		cmd.RegisterFlagCompletionFunc("nodes", s.CompleteNodes())
		all = append(all, session.AsKind(cmd))
	}
	return all
}
