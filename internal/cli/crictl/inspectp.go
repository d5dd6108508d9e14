package crictl

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newInspectPod(s *settings) *cobra.Command {
	var i inspection
	var f podFilter
	cmd := &cobra.Command{
		Use:   "inspectp [POD...]",
		Short: "Show all that is known of pods",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				list := func() ([]string, error) {
					found, err := f.list(ctx, c)
					return ids(found), err
				}
				return i.print(cmd, args, list, func(id string, verbose bool) (*one, error) { return inspectPod(ctx, c, id, verbose) })
			})
		},
	}
	i.register(cmd)
	f.register(cmd)
	return cmd
}

func inspectPod(ctx context.Context, c *clients, id string, verbose bool) (*one, error) {
	resp, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: verbose})
	if err != nil {
		return nil, fmt.Errorf("cannot inspect the pod %s: %w", id, err)
	}
	status, err := described(resp.Status, map[string]time.Time{"createdAt": time.Unix(0, resp.Status.CreatedAt)})
	if err != nil {
		return nil, err
	}
	return &one{withInfo(status, resp.Info), func(w io.Writer) { podLines(w, resp, verbose) }}, nil
}

func podLines(w io.Writer, resp *runtimeapi.PodSandboxStatusResponse, verbose bool) {
	s := resp.Status
	field(w, "ID", s.Id)
	field(w, "Name", s.GetMetadata().GetName())
	field(w, "UID", s.GetMetadata().GetUid())
	field(w, "Namespace", s.GetMetadata().GetNamespace())
	fmt.Fprintf(w, "Attempt: %d\n", s.GetMetadata().GetAttempt())
	field(w, "Status", s.State.String())
	fmt.Fprintf(w, "Created: %v\n", time.Unix(0, s.CreatedAt))
	if s.Network != nil {
		fmt.Fprintf(w, "IP Addresses: %s\n", s.Network.Ip)
		for _, ip := range s.Network.AdditionalIps {
			fmt.Fprintf(w, "Additional IP: %s\n", ip.Ip)
		}
	}
	pairs(w, "Labels", s.Labels)
	pairs(w, "Annotations", s.Annotations)
	if verbose {
		fmt.Fprintf(w, "Info: %v\n", resp.Info)
	}
}
