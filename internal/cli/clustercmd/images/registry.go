package images

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/registry"
)

// NewRegistry returns `registry`, with its subcommands.
func NewRegistry() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Manage the local registry that every cluster pulls from",
		Long: "An image that is pushed to localhost:PORT on this host has the same name in every cluster of berth. The registry\n" +
			"is a container beside the nodes, with its images on a volume. It outlives clusters. Only this host may push to\n" +
			"it; nodes and pods may pull.",
		Example: "  berth cluster registry start\n" +
			"  docker push localhost:5001/app:1",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRegistryStart(), newRegistryStop(), newRegistryStatus(), newRegistryDelete())
	return cmd
}

func newRegistryStart() *cobra.Command {
	var s session.Session
	var o registry.Options
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Create or start the registry, and configure running clusters to use it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.UseRegistryAlone(cmd, func(ctx context.Context, c *cluster.Clusters) error {
				if _, err := c.Registry().Status(ctx); err == nil && !cmd.Flags().Changed("port") {
					o.Port = 0 // the one that it has
				}
				status, err := c.Registry().Start(ctx, o)
				if status.Running {
					fmt.Fprintf(cmd.OutOrStdout(), "the registry is at %s\n", status.Address)
				}
				return err
			})
		},
	}
	s.AddProviderFlags(cmd)
	cmd.Flags().IntVar(&o.Port, "port", registry.DefaultPort, "port on this host's loopback; 0: a free one")
	cmd.Flags().StringVar(&o.Image, "image", "", "node image whose berth serves the registry; empty: the default node image")
	return cmd
}

func newRegistryStop() *cobra.Command {
	var s session.Session
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the registry; it keeps its images",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.UseRegistryAlone(cmd, func(ctx context.Context, c *cluster.Clusters) error { return c.Registry().Stop(ctx) })
		},
	}
	s.AddProviderFlags(cmd)
	return cmd
}

func newRegistryStatus() *cobra.Command {
	var s session.Session
	var format show.Flag
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the registry",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
				status, err := c.Registry().Status(ctx)
				if err != nil {
					return err
				}
				return format.Print(cmd.OutOrStdout(), status, func(w io.Writer) error {
					return show.Table(w, []string{"REGISTRY", "STATE", "ADDRESS", "IMAGE"}, [][]string{{status.Name, status.State, status.Address, status.Image}})
				})
			})
		},
	}
	s.AddProviderFlags(cmd)
	format.Register(cmd)
	return cmd
}

func newRegistryDelete() *cobra.Command {
	var s session.Session
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the registry and its images",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.UseRegistryAlone(cmd, func(ctx context.Context, c *cluster.Clusters) error {
				found, err := c.Registry().Delete(ctx)
				if err == nil && !found {
					fmt.Fprintln(cmd.OutOrStdout(), "there was no registry")
				}
				return err
			})
		},
	}
	s.AddProviderFlags(cmd)
	return cmd
}
