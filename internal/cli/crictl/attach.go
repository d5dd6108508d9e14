package crictl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient/stream"
)

func newAttach(s *settings) *cobra.Command {
	var interactive, tty bool
	cmd := &cobra.Command{
		Use:   "attach CONTAINER",
		Short: "Join a container's streams; leaving it does not stop it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				resp, err := c.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
					ContainerId: args[0], Tty: tty, Stdin: interactive, Stdout: true, Stderr: !tty,
				})
				if err == nil {
					_, err = stream.Run(ctx, resp.Url, streams(cmd, interactive, tty))
				}
				if err != nil {
					return fmt.Errorf("cannot attach to the container %s: %w", args[0], err)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&interactive, "stdin", "i", false, "pass standard input on")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "the container has a terminal")
	return cmd
}
