package images

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
	"github.com/berthrun/berth/internal/errs"
)

// NewPull returns `crictl pull`.
func NewPull(s *connection.Settings) *cobra.Command {
	var creds, auth string
	var annotations []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Pull an image from a registry",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			login, err := credentials(cmp.Or(creds, s.Getenv("CRICTL_CREDS")), cmp.Or(auth, s.Getenv("CRICTL_AUTH")))
			if err != nil {
				return err
			}
			notes, err := selection.ParseLabels(annotations)
			if err != nil {
				return err
			}
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				if timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, timeout)
					defer cancel()
				}
				resp, err := c.Images.PullImage(ctx, &runtimeapi.PullImageRequest{
					Image: &runtimeapi.ImageSpec{Image: args[0], Annotations: notes}, Auth: login,
				})
				if err != nil {
					return fmt.Errorf("cannot pull %s: %w", args[0], err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "Image is up to date for %s\n", resp.ImageRef)
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&creds, "creds", "", "USER[:PASSWORD] for the registry (default: $CRICTL_CREDS)")
	flags.StringVar(&auth, "auth", "", "the same in base64 (default: $CRICTL_AUTH)")
	flags.StringArrayVarP(&annotations, "annotation", "a", nil, "KEY=VALUE for the runtime")
	flags.DurationVar(&timeout, "pull-timeout", 0, "timeout of the pull; 0: none")
	return cmd
}

// credentials are the credentials for a registry; nil for none.
func credentials(creds, auth string) (*runtimeapi.AuthConfig, error) {
	user, password, _ := strings.Cut(creds, ":")
	switch {
	case creds != "" && auth != "":
		return nil, fmt.Errorf("both --creds and --auth are given; want one: %w", errs.Invalid)
	case creds != "" && user == "":
		return nil, fmt.Errorf("--creds: the user is empty; want USER[:PASSWORD]: %w", errs.Invalid)
	case creds != "":
		return &runtimeapi.AuthConfig{Username: user, Password: password}, nil
	case auth != "":
		return &runtimeapi.AuthConfig{Auth: auth}, nil
	}
	return nil, nil //nolint:nilnil // without a login
}
