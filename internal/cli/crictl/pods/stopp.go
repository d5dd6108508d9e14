package pods

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
)

// NewStopPod returns `crictl stopp`.
func NewStopPod(s *connection.Settings) *cobra.Command {
	return &cobra.Command{
		Use:   "stopp POD...",
		Short: "Stop pods",
		RunE: verb.OrHelp(func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				return verb.Each(cmd.OutOrStdout(), args, func(id string) (string, error) { return stopPod(ctx, c, id) })
			})
		}),
	}
}

func stopPod(ctx context.Context, c *connection.Clients, id string) (done string, err error) {
	if _, err := c.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return "", fmt.Errorf("cannot stop the pod %s: %w", id, err)
	}
	return "Stopped sandbox " + id + "\n", nil
}
