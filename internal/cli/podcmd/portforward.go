package podcmd

import (
	"context"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/criclient/stream"
	"github.com/berthrun/berth/internal/errs"
)

func (c *commands) newPortForward() *cobra.Command {
	var addresses []string
	cmd := &cobra.Command{
		Use:               "port-forward POD [LOCAL:]PORT...",
		Short:             "Forward local ports to a pod's localhost until Ctrl-C",
		Example:           "  berth pod port-forward hello 8080:80\n  berth pod port-forward hello :80   # any free local port",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.completePods(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			ports, err := remotePorts(args[1:])
			if err != nil {
				return err
			}
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				pod, err := findPod(ctx, conn, args[0])
				if err != nil {
					return err
				}
				resp, err := conn.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: pod.Id, Port: ports})
				if err != nil {
					return err
				}
				ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				return stream.Forward(ctx, resp.Url, addresses, args[1:], cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	cmd.Flags().StringSliceVar(&addresses, "address", []string{"localhost"}, "local addresses to listen on")
	return cmd
}

// remotePorts takes the pod's side of "8080:80", ":80" and "80".
func remotePorts(specs []string) ([]int32, error) {
	ports := make([]int32, 0, len(specs))
	for _, spec := range specs {
		_, remote, both := strings.Cut(spec, ":")
		if !both {
			remote = spec
		}
		port, err := strconv.ParseUint(remote, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("%q is no [LOCAL:]PORT: %w", spec, errs.Invalid)
		}
		ports = append(ports, int32(port))
	}
	return ports, nil
}
