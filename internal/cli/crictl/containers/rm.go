package containers

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
	"github.com/berthrun/berth/internal/errs"
)

// NewRemove returns `crictl rm`.
func NewRemove(s *connection.Settings) *cobra.Command {
	var force, all, keep bool
	cmd := &cobra.Command{
		Use:   "rm CONTAINER...",
		Short: "Remove containers; keep their log files, which belong to the kubelet",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				args, err := named(ctx, c, args, all, &selection.Containers{All: true})
				if err != nil || len(args) == 0 && !all {
					return verb.ErrorOrHelp(cmd, err)
				}
				return verb.Each(cmd.OutOrStdout(), args, func(id string) (string, error) {
					if err := removeContainer(ctx, c, id, force); err != nil {
						return "", fmt.Errorf("cannot remove the container %s: %w", id, err)
					}
					return id + "\n", nil
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also remove running containers; kill them")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all containers")
	cmd.Flags().BoolVarP(&keep, "keep-logs", "k", false, "accepted for compatibility: log files are always kept")
	return cmd
}

func removeContainer(ctx context.Context, c *connection.Clients, id string, force bool) error {
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return err
	}
	if resp.Status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
		if !force {
			return fmt.Errorf("it is running: stop it first, or use --force: %w", errs.State)
		}
		if _, err := c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
			return err
		}
	}
	_, err = c.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return err
}
