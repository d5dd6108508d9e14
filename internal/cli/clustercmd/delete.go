package clustercmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/local"
	"github.com/berthrun/berth/internal/errs"
)

// newDelete removes clusters.
func newDelete() *cobra.Command {
	var s session.Session
	var all bool
	cmd := &cobra.Command{
		Use:        "delete [NAME...]",
		SuggestFor: []string{"rm", "remove", "destroy", "down"},
		Short:      "Delete clusters with their volumes and kubeconfig entries",
		Example: "  berth cluster delete dev\n" +
			"  berth cluster delete --all",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all && (len(args) > 0 || s.Name != "") {
				return fmt.Errorf("use either --all or cluster names: %w", errs.Invalid)
			}
			if all || len(args) > 1 {
				return removeAll(cmd, cmd.OutOrStdout(), &s, args)
			}
			return s.UseCluster(cmd, args, func(ctx context.Context, c *cluster.Clusters, name string) error {
				return remove(ctx, cmd.OutOrStdout(), c, name)
			})
		},
	}
	s.AddFlags(cmd)
	cmd.Flags().BoolVarP(&all, "all", "A", false, "all clusters")
	cmd.AddCommand(newDeleteOfKind()...)
	return cmd
}

// newDeleteOfKind are `delete cluster` and `delete clusters`.
func newDeleteOfKind() []*cobra.Command {
	one, several := session.Session{OfKind: true}, session.Session{OfKind: true}
	all := false
	of := &cobra.Command{
		Use:   "cluster",
		Short: "Delete a cluster with its volumes and kubeconfig entries",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return one.UseCluster(cmd, nil, func(ctx context.Context, c *cluster.Clusters, name string) error {
				return remove(ctx, cmd.ErrOrStderr(), c, name)
			})
		},
	}
	one.AddFlags(of)
	session.AsKind(of)
	clusters := &cobra.Command{
		Use:   "clusters [NAME...]",
		Short: "Delete clusters",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !all && len(args) == 0 {
				return fmt.Errorf("no cluster names provided; use --all for every cluster: %w", errs.Invalid)
			}
			if all {
				args = nil // so kind has it
			}
			return removeAll(cmd, cmd.ErrOrStderr(), &several, args)
		},
	}
	several.AddProviderFlags(clusters)
	clusters.Flags().StringVar(&several.Kubeconfig, "kubeconfig", "", session.KubeconfigHelp)
	clusters.Flags().BoolVarP(&all, "all", "A", false, "all clusters")
	return []*cobra.Command{of, session.AsKind(clusters)}
}

// removeAll removes the clusters of some names, or of all; each is tried. notes gets a line for
// each missing cluster.
func removeAll(cmd *cobra.Command, notes io.Writer, s *session.Session, names []string) error {
	if s.Name != "" {
		return fmt.Errorf("name the clusters either as arguments or with --name: %w", errs.Invalid)
	}
	if err := s.CheckNames(names); err != nil {
		return err
	}
	return s.Use(cmd, func(ctx context.Context, c *cluster.Clusters) error {
		if len(names) == 0 {
			found, err := inventory.Clusters(ctx, c.Provider)
			if err != nil {
				return err
			}
			for _, summary := range found {
				names = append(names, summary.Name)
			}
		}
		var failed []error
		for _, name := range names {
			if ctx.Err() != nil {
				failed = append(failed, context.Cause(ctx))
				break
			}
			name, err := s.Resolve(ctx, c, name)
			if err == nil {
				err = remove(ctx, notes, c, name)
			}
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	})
}

// remove removes one cluster, and reports a missing one.
func remove(ctx context.Context, notes io.Writer, c *cluster.Clusters, name string) error {
	release, err := local.Lock(c.Provider, name)
	if err != nil {
		return err
	}
	defer release()
	found, err := c.Delete(ctx, name)
	if err == nil && !found {
		fmt.Fprintf(notes, "there was no cluster %s in %s\n", name, c.Provider.Name())
	}
	return err
}
