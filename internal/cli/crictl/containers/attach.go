package containers

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/criclient/stream"
)

// NewAttach returns `crictl attach`.
func NewAttach(s *connection.Settings) *cobra.Command {
	var interactive, tty bool
	cmd := &cobra.Command{
		Use:   "attach CONTAINER",
		Short: "Attach to the streams of a running container; detaching does not stop it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
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
	cmd.Flags().BoolVarP(&interactive, "stdin", "i", false, "connect standard input")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "the container has a terminal")
	return cmd
}
