package containers

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
)

// NewStop returns `crictl stop`.
func NewStop(s *connection.Settings) *cobra.Command {
	var grace int64
	var all bool
	cmd := &cobra.Command{
		Use:   "stop CONTAINER...",
		Short: "Stop containers",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				args, err := named(ctx, c, args, all, &selection.Containers{})
				if err != nil || len(args) == 0 && !all {
					return verb.ErrorOrHelp(cmd, err)
				}
				return verb.Each(cmd.OutOrStdout(), args, func(id string) (string, error) {
					_, err := c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: grace})
					if err != nil {
						return "", fmt.Errorf("cannot stop the container %s: %w", id, err)
					}
					return id + "\n", nil
				})
			})
		},
	}
	cmd.Flags().Int64VarP(&grace, "timeout", "t", 0, "grace period in seconds; then the container is killed")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all containers that run")
	return cmd
}

// named are the named containers, or all that a filter finds.
func named(ctx context.Context, c *connection.Clients, args []string, all bool, f *selection.Containers) ([]string, error) {
	if !all {
		return args, nil
	}
	found, err := f.List(ctx, c)
	return selection.IDs(found), err
}
