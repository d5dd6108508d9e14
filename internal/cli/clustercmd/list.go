package clustercmd

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// newList lists clusters.
func newList() *cobra.Command {
	var s session.Session
	var format show.Flag
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List clusters",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
				found, err := inventory.Clusters(ctx, c.Provider)
				if err != nil {
					return err
				}
				return format.Print(cmd.OutOrStdout(), found, func(w io.Writer) error {
					var rows [][]string
					for _, f := range found {
						rows = append(rows, []string{f.Name, strconv.Itoa(f.Nodes), strconv.Itoa(f.Running), f.Context})
					}
					return show.Table(w, []string{"CLUSTER", "NODES", "RUNNING", "CONTEXT"}, rows)
				})
			})
		},
	}
	s.AddFlags(cmd)
	format.Register(cmd)
	return cmd
}

// newNodes lists the nodes of a cluster.
func newNodes() *cobra.Command {
	var s session.Session
	var format show.Flag
	var all bool
	cmd := &cobra.Command{
		Use:   "nodes [NAME]",
		Short: "List the nodes of a cluster",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			printNodes := func(found []provider.Node) error {
				type node struct {
					provider.Node
					Role config.Role `json:"role"`
				}
				all := []node{} // none is an empty list to programs, too
				for _, n := range found {
					all = append(all, node{n, inventory.Role(n)})
				}
				return format.Print(cmd.OutOrStdout(), all, func(w io.Writer) error {
					var rows [][]string
					for _, n := range all {
						address := ""
						for _, a := range []string{n.IPv4.String(), n.IPv6.String()} {
							if address == "" && a != "invalid IP" {
								address = a
							}
						}
						rows = append(rows, []string{n.Name, string(n.Role), n.State, address, n.Image})
					}
					return show.Table(w, []string{"NODE", "ROLE", "STATE", "ADDRESS", "IMAGE"}, rows)
				})
			}
			if all {
				if len(args) > 0 || s.Name != "" {
					return fmt.Errorf("use either --all or a cluster name: %w", errs.Invalid)
				}
				return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
					found, err := inventory.AllNodes(ctx, c.Provider)
					if err != nil {
						return err
					}
					return printNodes(found)
				})
			}
			return s.UseCluster(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
				found, err := inventory.Nodes(ctx, c.Provider, name)
				if err != nil {
					return err
				}
				return printNodes(found)
			})
		},
	}
	s.AddFlags(cmd)
	format.Register(cmd)
	cmd.Flags().BoolVarP(&all, "all", "A", false, "nodes of all clusters")
	return cmd
}

// newKubeconfig prints a cluster's kubeconfig, or merges it into files.
func newKubeconfig() *cobra.Command {
	cmd := printKubeconfig(false)
	cmd.AddCommand(exportKubeconfig(false))
	return cmd
}

const internalHelp = "use the address for containers on the nodes' network"

func printKubeconfig(kinds bool) *cobra.Command {
	s := session.Session{OfKind: kinds}
	var internal bool
	cmd := &cobra.Command{
		Use:   "kubeconfig [NAME]",
		Short: "Print the kubeconfig of a cluster",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.UseCluster(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
				admin, err := c.Config(ctx, name, internal)
				if err != nil {
					return err
				}
				text, err := kubeconfig.Render(admin)
				if err == nil {
					_, err = cmd.OutOrStdout().Write(text)
				}
				return err
			})
		},
	}
	s.AddFlags(cmd)
	cmd.Flags().BoolVar(&internal, "internal", false, internalHelp)
	return cmd
}

// reportContext reports where the access to a cluster is. kind writes nothing to standard output
// then.
func reportContext(cmd *cobra.Command, s session.Session, context, file string) {
	if s.OfKind {
		fmt.Fprintf(cmd.ErrOrStderr(), "Set kubectl context to %q\n", context)
		return
	}
	fmt.Fprintf(cmd.OutOrStdout(), "context %s is in %s\n", context, file)
}

func exportKubeconfig(kinds bool) *cobra.Command {
	s := session.Session{OfKind: kinds}
	var internal bool
	cmd := &cobra.Command{
		Use:   "export [NAME]",
		Short: "Add a cluster to the kubeconfig file and make it the current context",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.UseCluster(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
				file, context, err := c.Export(ctx, name, internal)
				if err == nil {
					reportContext(cmd, s, context, file)
				}
				return err
			})
		},
	}
	s.AddFlags(cmd)
	cmd.Flags().BoolVar(&internal, "internal", false, internalHelp)
	return cmd
}
