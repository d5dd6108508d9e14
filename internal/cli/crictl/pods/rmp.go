package pods

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

// NewRemovePod returns `crictl rmp`.
func NewRemovePod(s *connection.Settings) *cobra.Command {
	var force, all bool
	cmd := &cobra.Command{
		Use:   "rmp POD...",
		Short: "Remove pods",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				if all {
					found, err := (&selection.Pods{}).List(ctx, c)
					if err != nil {
						return err
					}
					args = selection.IDs(found)
				}
				if len(args) == 0 && !all {
					return cmd.Help()
				}
				return verb.Each(cmd.OutOrStdout(), args, func(id string) (string, error) { return removePod(ctx, c, id, force) })
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also remove running pods; stop them")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	return cmd
}

func removePod(ctx context.Context, c *connection.Clients, id string, force bool) (done string, err error) {
	resp, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return "", fmt.Errorf("cannot find the pod %s: %w", id, err)
	}
	if resp.Status.State == runtimeapi.PodSandboxState_SANDBOX_READY {
		if !force {
			return "", fmt.Errorf("cannot remove the pod %s: it is running: stop it first, or use --force: %w", id, errs.State)
		}
		if done, err = stopPod(ctx, c, id); err != nil {
			return "", err
		}
	}
	if _, err := c.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return "", fmt.Errorf("cannot remove the pod %s: %w", id, err)
	}
	return done + "Removed sandbox " + id + "\n", nil
}
