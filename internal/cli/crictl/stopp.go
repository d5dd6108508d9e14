package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newStopPod(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "stopp POD...",
		Short: "Stop pods",
		RunE: orHelp(func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				return each(cmd.OutOrStdout(), args, func(id string) (string, error) { return stopPod(ctx, c, id) })
			})
		}),
	}
}

func stopPod(ctx context.Context, c *clients, id string) (done string, err error) {
	if _, err := c.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return "", fmt.Errorf("cannot stop the pod %s: %w", id, err)
	}
	return "Stopped sandbox " + id + "\n", nil
}
