package ctr

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/podrun"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/criclient"
)

func newPull(s *settings) *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Pull an image from a registry, as the node's configuration of registries has it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, password, _ := strings.Cut(user, ":")
			req := berthapi.PullRequest{Ref: args[0], Auth: berthapi.Auth{Username: name, Password: password}}
			return s.use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				if _, err := podrun.Pull(ctx, conn, req, progress.New(cmd.ErrOrStderr(), req.Ref)); err != nil {
					return fmt.Errorf("cannot pull %s: %w", req.Ref, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: done\n", req.Ref)
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "USER:PASSWORD for the registry")
	accepted(cmd, "all-platforms", "local", "print-chainid", "all-metadata", "platform=", "snapshotter=", "label=", "hosts-dir=", "max-concurrent-downloads=")
	return cmd
}
