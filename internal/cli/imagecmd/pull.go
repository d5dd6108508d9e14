package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/podrun"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

func (c *commands) newPull() *cobra.Command {
	var user string
	var passwordStdin bool
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Pull images from a registry",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			auth, err := credentials(cmd.InOrStdin(), user, passwordStdin)
			if err != nil {
				return err
			}
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				var failed []error
				for _, ref := range args {
					failed = append(failed, pull(ctx, cmd, conn, berthapi.PullRequest{Ref: ref, Auth: auth}))
				}
				return errors.Join(failed...)
			})
		},
	}
	cmd.Flags().StringVarP(&user, "username", "u", "", "user name for the registry")
	cmd.Flags().BoolVar(&passwordStdin, "password-stdin", false, "read the password from stdin")
	cmd.MarkFlagsRequiredTogether("username", "password-stdin")
	return cmd
}

// credentials reads the password from stdin only: every user can see arguments.
func credentials(in io.Reader, user string, passwordStdin bool) (berthapi.Auth, error) {
	if !passwordStdin {
		return berthapi.Auth{}, nil
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return berthapi.Auth{}, fmt.Errorf("cannot read the password: %w", err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return berthapi.Auth{}, fmt.Errorf("cannot log in: the password on stdin is empty: %w", errs.Invalid)
	}
	return berthapi.Auth{Username: user, Password: password}, nil
}

func pull(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, req berthapi.PullRequest) error {
	if err := podrun.Pull(ctx, conn, req, progress.New(cmd.ErrOrStderr(), req.Ref)); err != nil {
		return err
	}
	resp, err := conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: req.Ref}})
	if err != nil {
		return err
	}
	img := resp.GetImage()
	report(cmd.OutOrStdout(), []berthapi.Image{{ID: img.GetId(), Tags: []string{req.Ref}, Size: int64(img.GetSize())}})
	return nil
}
