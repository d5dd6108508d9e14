package session

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/inventory"
)

// completeTime is how long a shell waits for names, at most.
const completeTime = 5 * time.Second

// completeClusters completes names of clusters for the flag --name and for an argument NAME.
func (s *Session) completeClusters(cmd *cobra.Command) {
	clusters := s.completion(func(ctx context.Context, c *cluster.Clusters) ([]string, error) {
		found, err := inventory.Clusters(ctx, c.Provider)
		var names []string
		for _, summary := range found {
			names = append(names, summary.Name)
		}
		return names, err
	})
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("name", clusters)
	if strings.Contains(cmd.Use, "[NAME") {
		cmd.ValidArgsFunction = clusters
	}
}

// CompleteNodes completes names of nodes: of the cluster of --name, or of all.
func (s *Session) CompleteNodes() cobra.CompletionFunc {
	return s.completion(func(ctx context.Context, c *cluster.Clusters) ([]string, error) {
		found, err := c.Provider.List(ctx, s.Name)
		var names []string
		for _, n := range found {
			names = append(names, n.Name)
		}
		return names, err
	})
}

// completion completes names of the provider, without those on the command line. It completes
// nothing if the provider does not answer.
func (s *Session) completion(find func(context.Context, *cluster.Clusters) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		cmd.SetContext(ctx)
		engine, err := s.Provider.Open(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := find(ctx, &cluster.Clusters{Provider: engine})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) || slices.Contains(args, name) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
