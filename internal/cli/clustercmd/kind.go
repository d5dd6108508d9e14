package clustercmd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/images"
	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/version"
)

// This file has the commands of kind without a counterpart among berth's. For scripts they write
// to standard output what kind writes there, and they have kind's flags. The other commands of
// kind (`create cluster`) are beside berth's.

func newGet() *cobra.Command {
	var list session.Session
	clusters := &cobra.Command{
		Use:   "clusters",
		Short: "Print the names of clusters",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
				found, err := inventory.Clusters(ctx, c.Provider)
				if err == nil && len(found) == 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "No kind clusters found.")
				}
				for _, summary := range found {
					fmt.Fprintln(cmd.OutOrStdout(), summary.Name)
				}
				return err
			})
		},
	}
	list.AddProviderFlags(clusters)
	kubeconfig := printKubeconfig(true)
	kubeconfig.Use, kubeconfig.Args = "kubeconfig", cobra.NoArgs
	return session.Group("get", "Print clusters, nodes or a kubeconfig", session.AsKind(clusters), newGetNodes(), session.AsKind(kubeconfig))
}

func newGetNodes() *cobra.Command {
	s := session.Session{OfKind: true}
	all := false
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Print the names of the nodes of a cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			printNodes := func(found []provider.Node, none string) error {
				if len(found) == 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), none)
				}
				for _, n := range found {
					fmt.Fprintln(cmd.OutOrStdout(), n.Name)
				}
				return nil
			}
			return s.UseCluster(cmd, nil, func(ctx context.Context, c *cluster.Clusters, name string) error {
				if all {
					found, err := inventory.AllNodes(ctx, c.Provider)
					return errors.Join(err, printNodes(found, "No kind nodes for any cluster."))
				}
				found, err := inventory.Nodes(ctx, c.Provider, name)
				if errs.IgnoreNotFound(err) != nil {
					return err
				}
				return printNodes(found, fmt.Sprintf("No kind nodes found for cluster %q.", name))
			})
		},
	}
	s.AddFlags(cmd)
	cmd.Flags().BoolVarP(&all, "all-clusters", "A", false, "nodes of all clusters")
	return session.AsKind(cmd)
}

func newExport() *cobra.Command {
	kubeconfig := exportKubeconfig(true)
	kubeconfig.Use, kubeconfig.Args = "kubeconfig", cobra.NoArgs
	s := session.Session{OfKind: true}
	logs := &cobra.Command{
		Use:   "logs [DIR]",
		Short: "Export logs and state of a cluster to a directory, and print its path",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return exportLogs(cmd, &s, args, func(name, dir string, done bool) {
				if !done {
					fmt.Fprintf(cmd.ErrOrStderr(), "Exporting logs for cluster %q to:\n", name)
					fmt.Fprintln(cmd.OutOrStdout(), dir)
				}
			})
		},
	}
	s.AddFlags(logs)
	return session.Group("export", "Export the kubeconfig or the logs of a cluster", session.AsKind(kubeconfig), session.AsKind(logs))
}

// newBuild is `build node-image`. Its image has berth's name, too, so that clusters use it.
func newBuild() *cobra.Command {
	cmd, o := images.Build()
	var kind, base, arch string
	run := cmd.RunE
	cmd.Use, cmd.Args = "node-image [KUBERNETES]", cobra.MaximumNArgs(1)
	cmd.Short = "Build a node image from a release, an archive, its URL or a directory"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			o.Kubernetes = args[0]
		}
		switch {
		case kind == "source" || kind == "ci" || strings.HasPrefix(o.Kubernetes, "ci/"):
			return fmt.Errorf("berth neither builds Kubernetes nor downloads its CI builds; name a release, such as v1.36.3, an archive, its URL, or a directory with programs: %w", errs.Unsupported)
		case !slices.Contains([]string{"", "url", "file", "release"}, kind):
			return fmt.Errorf("--type: %q: want url, file or release: %w", kind, errs.Invalid)
		case base != "":
			return fmt.Errorf("--base-image: the image is built from Debian's packages; --suite, --mirror and --rootfs say which: %w", errs.Unsupported)
		case arch != "" && arch != runtime.GOARCH:
			return fmt.Errorf("--arch: %q: the image has this berth in it, which is for %s: %w", arch, runtime.GOARCH, errs.Unsupported)
		}
		if !cmd.Flags().Changed("image") {
			o.Also = []string{"kindest/node:latest"}
		}
		return run(cmd, nil)
	}
	flags := cmd.Flags()
	flags.StringVar(&kind, "type", "", "url, file or release; empty: detected")
	flags.StringVar(&base, "base-image", "", "not supported: the image is built from Debian's packages")
	flags.StringVar(&arch, "arch", "", "architecture, which must be this host's")
	return session.Group("build", "Build a node image", session.AsKind(cmd))
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print version and commit", Hidden: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "berth %s\n", version.String())
			return err
		},
	}
}
