package containers

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
)

// NewEvents returns `crictl events`.
func NewEvents(s *connection.Settings) *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:     "events",
		Aliases: []string{"event"},
		Short:   "Print the events of containers until Ctrl-C",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := format.Check(); err != nil {
				return err
			}
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				events, err := c.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
				for err == nil {
					var event *runtimeapi.ContainerEventResponse
					if event, err = events.Recv(); err == nil {
						err = format.Message(cmd.OutOrStdout(), event, nil)
					}
				}
				if errors.Is(err, io.EOF) {
					return nil // the runtime ends
				}
				return fmt.Errorf("cannot read the events of containers: %w", err)
			})
		},
	}
	format.Register(cmd, output.JSON, output.YAML, output.GoTemplate)
	return cmd
}
