package clustercmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/logs"
)

// newLogs exports logs.
func newLogs() *cobra.Command {
	var s session.Session
	cmd := &cobra.Command{
		Use:   "logs [DIR]",
		Short: "Export logs and state of a cluster to a directory, even if its creation has failed",
		Long:  "logs writes to DIR, or to a new temporary directory, and prints its path.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return exportLogs(cmd, &s, args, func(name, dir string, done bool) {
				if done {
					fmt.Fprintf(cmd.OutOrStdout(), "logs of %s are in %s\n", name, dir)
				}
			})
		},
	}
	s.AddFlags(cmd)
	cmd.ValidArgsFunction = directories
	return cmd
}

// directories makes shells complete directories.
func directories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// exportLogs writes the logs of a cluster. report is called before and after.
func exportLogs(cmd *cobra.Command, s *session.Session, args []string, report func(name, dir string, done bool)) error {
	return s.UseCluster(cmd, nil, func(ctx context.Context, c *cluster.Clusters, name string) (err error) {
		if _, err := inventory.Nodes(ctx, c.Provider, name); err != nil {
			return err
		}
		dir := ""
		if len(args) > 0 {
			if dir, err = filepath.Abs(args[0]); err == nil {
				err = os.MkdirAll(dir, 0o700)
			}
		} else {
			dir, err = os.MkdirTemp("", "berth-logs-")
		}
		if err != nil {
			return fmt.Errorf("cannot make a directory for logs: %w", err)
		}
		report(name, dir, false)
		err = logs.Collector{Provider: c.Provider, Warn: c.Warn}.Collect(ctx, name, dir)
		report(name, dir, true)
		return err
	})
}
