package ctr

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/criclient"
)

func newTag(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tag IMAGE NAME...",
		Short: "Add names to an image",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				if err := conn.Berth.TagImage(ctx, berthapi.TagRequest{Image: args[0], Names: args[1:]}); err != nil {
					return fmt.Errorf("cannot tag %s: %w", args[0], err)
				}
				for _, name := range args[1:] {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return nil
			})
		},
	}
	// A name of another image moves to this one, with or without this flag.
	accepted(cmd, "force", "local", "skip-reference-check")
	return cmd
}
