package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newStop(s *settings) *cobra.Command {
	var grace int64
	var all bool
	cmd := &cobra.Command{
		Use:   "stop CONTAINER...",
		Short: "Stop containers",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				args, err := named(ctx, c, args, all, &containerFilter{})
				if err != nil || len(args) == 0 && !all {
					return errorOrHelp(cmd, err)
				}
				return each(cmd.OutOrStdout(), args, func(id string) (string, error) {
					_, err := c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: grace})
					if err != nil {
						return "", fmt.Errorf("cannot stop the container %s: %w", id, err)
					}
					return id + "\n", nil
				})
			})
		},
	}
	cmd.Flags().Int64VarP(&grace, "timeout", "t", 0, "seconds before a container that still runs is killed")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all containers that run")
	return cmd
}

// named are the containers that are named, or all that a filter finds.
func named(ctx context.Context, c *clients, args []string, all bool, f *containerFilter) ([]string, error) {
	if !all {
		return args, nil
	}
	found, err := f.list(ctx, c)
	return ids(found), err
}

// errorOrHelp shows how a verb is called that has nothing to do.
func errorOrHelp(cmd *cobra.Command, err error) error {
	if err != nil {
		return err
	}
	return cmd.Help()
}
