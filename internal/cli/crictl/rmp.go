package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

func newRemovePod(s *settings) *cobra.Command {
	var force, all bool
	cmd := &cobra.Command{
		Use:   "rmp POD...",
		Short: "Remove pods",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				if all {
					found, err := (&podFilter{}).list(ctx, c)
					if err != nil {
						return err
					}
					args = ids(found)
				}
				if len(args) == 0 && !all {
					return cmd.Help()
				}
				return each(cmd.OutOrStdout(), args, func(id string) (string, error) { return removePod(ctx, c, id, force) })
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also pods that run, which are stopped")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	return cmd
}

func removePod(ctx context.Context, c *clients, id string, force bool) (done string, err error) {
	resp, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return "", fmt.Errorf("cannot find the pod %s: %w", id, err)
	}
	if resp.Status.State == runtimeapi.PodSandboxState_SANDBOX_READY {
		if !force {
			return "", fmt.Errorf("cannot remove the pod %s: it runs: stop it first, or use --force: %w", id, errs.State)
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
