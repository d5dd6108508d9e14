package imagecmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/interrupt"
	"github.com/berthrun/berth/internal/cli/podrun"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
)

func (c *commands) newPull() *cobra.Command {
	var user, handler string
	var passwordStdin bool
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Pull images from a registry",
		Long: "pull pulls the images from their registries, one after the other.\n\n" +
			"Ctrl-C ends the request. The pull itself goes on while other requests wait for the same image, such as those of a\n" +
			"kubelet. Otherwise it ends. berth keeps what it has downloaded for up to a day, and the next pull continues from there.",
		Example: "  berth image pull busybox:1.36\n  berth image pull --handler wasm registry.example/app:1",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			auth, err := credentials(cmd.InOrStdin(), user, passwordStdin)
			if err != nil {
				return err
			}
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				// The request ends with the process at once. A second Ctrl-C has nothing to skip.
				return interrupt.Run(ctx, func(string) {}, func(ctx context.Context) error {
					var failed []error
					for _, ref := range args {
						if ctx.Err() != nil {
							break
						}
						failed = append(failed, pull(ctx, cmd, conn, berthapi.PullRequest{Ref: ref, Auth: auth, Handler: handler}))
					}
					return errors.Join(failed...)
				})
			})
		},
	}
	registerHandler(cmd, &handler)
	cmd.Flags().StringVarP(&user, "username", "u", "", "user name for the registry")
	cmd.Flags().BoolVar(&passwordStdin, "password-stdin", false, "read the password from stdin")
	cmd.MarkFlagsRequiredTogether("username", "password-stdin")
	return cmd
}

// registerHandler adds the flag that says whose image is meant.
func registerHandler(cmd *cobra.Command, handler *string) {
	cmd.Flags().StringVar(handler, "handler", "", "runtime handler whose pods use the image; without it, the image for the node's platform")
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
	id, err := podrun.Pull(ctx, conn, req, progress.New(cmd.ErrOrStderr(), req.Ref))
	if err != nil && ctx.Err() != nil {
		return canceled(ctx, conn, req.Ref)
	}
	if err != nil {
		return err
	}
	resp, err := conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: cmp.Or(id, req.Ref), RuntimeHandler: req.Handler}})
	if err != nil {
		return err
	}
	img := resp.GetImage()
	report(cmd.OutOrStdout(), []berthapi.Image{{ID: img.GetId(), Tags: fullNames(req.Ref, img), Size: int64(img.GetSize())}})
	return nil
}

// statusTime bounds the question which runtime has a pull that was canceled.
const statusTime = 2 * time.Second

// canceled returns the error of a pull that the user has canceled, which says what becomes of it.
func canceled(ctx context.Context, conn *criclient.Conn, ref string) error {
	cause := context.Cause(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTime)
	defer cancel()
	resp, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	var engine struct{ Name string }
	if err != nil || json.Unmarshal([]byte(resp.GetInfo()["engine"]), &engine) != nil || engine.Name == "" {
		return fmt.Errorf("the pull of %s was canceled: %w", ref, cause) // another runtime
	}
	kept := "; berth keeps what it has downloaded for up to a day, and the next pull continues from there"
	if engine.Name == "docker" {
		kept = "" // the Docker Engine decides
	}
	return fmt.Errorf("the pull of %s was canceled: %w; it goes on while other requests wait for it (`berth jobs`)%s", ref, cause, kept)
}

// fullNames are the names of a pulled image that a name without a registry can mean. Another name is returned as it is.
func fullNames(ref string, img *runtimeapi.Image) []string {
	if !names.IsShort(ref) {
		return []string{ref}
	}
	var full []string
	for _, name := range slices.Concat(img.GetRepoTags(), img.GetRepoDigests()) {
		named, err := names.Parse(name)
		if err != nil {
			continue
		}
		at, err := names.Candidates(ref, []string{reference.Domain(named)})
		if err == nil && at[0].String() == name {
			full = append(full, name)
		}
	}
	if len(full) == 0 {
		return []string{ref}
	}
	return full
}
