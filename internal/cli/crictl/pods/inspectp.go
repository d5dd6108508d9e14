package pods

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
)

// NewInspectPod returns `crictl inspectp`.
func NewInspectPod(s *connection.Settings) *cobra.Command {
	var i verb.Inspection
	var f selection.Pods
	cmd := &cobra.Command{
		Use:   "inspectp [POD...]",
		Short: "Show the details of pods",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				list := func() ([]string, error) {
					found, err := f.List(ctx, c)
					return selection.IDs(found), err
				}
				return i.Print(cmd, args, list, func(id string, verbose bool) (*verb.Status, error) { return inspectPod(ctx, c, id, verbose) })
			})
		},
	}
	i.Register(cmd)
	f.Register(cmd)
	return cmd
}

func inspectPod(ctx context.Context, c *connection.Clients, id string, verbose bool) (*verb.Status, error) {
	resp, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: verbose})
	if err != nil {
		return nil, fmt.Errorf("cannot inspect the pod %s: %w", id, err)
	}
	status, err := verb.Described(resp.Status, map[string]time.Time{"createdAt": time.Unix(0, resp.Status.CreatedAt)})
	if err != nil {
		return nil, err
	}
	return &verb.Status{Value: output.WithInfo(status, resp.Info), Table: func(w io.Writer) { podLines(w, resp, verbose) }}, nil
}

func podLines(w io.Writer, resp *runtimeapi.PodSandboxStatusResponse, verbose bool) {
	s := resp.Status
	output.Field(w, "ID", s.Id)
	output.Field(w, "Name", s.GetMetadata().GetName())
	output.Field(w, "UID", s.GetMetadata().GetUid())
	output.Field(w, "Namespace", s.GetMetadata().GetNamespace())
	fmt.Fprintf(w, "Attempt: %d\n", s.GetMetadata().GetAttempt())
	output.Field(w, "Status", s.State.String())
	fmt.Fprintf(w, "Created: %v\n", time.Unix(0, s.CreatedAt))
	if s.Network != nil {
		fmt.Fprintf(w, "IP Addresses: %s\n", s.Network.Ip)
		for _, ip := range s.Network.AdditionalIps {
			fmt.Fprintf(w, "Additional IP: %s\n", ip.Ip)
		}
	}
	output.Pairs(w, "Labels", s.Labels)
	output.Pairs(w, "Annotations", s.Annotations)
	if verbose {
		fmt.Fprintf(w, "Info: %v\n", resp.Info)
	}
}
