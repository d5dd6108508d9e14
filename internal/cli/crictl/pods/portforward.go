package pods

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/criclient/stream"
)

// NewPortForward returns `crictl port-forward`.
func NewPortForward(s *connection.Settings) *cobra.Command {
	var transport string
	cmd := &cobra.Command{
		Use:   "port-forward POD [LOCAL:]PORT...",
		Short: "Forward local ports to a pod until Ctrl-C",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				resp, err := c.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: args[0]})
				if err == nil {
					ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
					defer stop()
					err = stream.Forward(ctx, resp.Url, []string{"localhost"}, args[1:], cmd.OutOrStdout(), cmd.ErrOrStderr())
				}
				if err != nil {
					return fmt.Errorf("cannot forward ports to the pod %s: %w", args[0], err)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&transport, "transport", "r", "spdy", "accepted for compatibility: the runtime decides")
	return cmd
}
