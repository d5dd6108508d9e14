package containers

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

// NewInspect returns `crictl inspect`.
func NewInspect(s *connection.Settings) *cobra.Command {
	var i verb.Inspection
	var f selection.Containers
	cmd := &cobra.Command{
		Use:   "inspect [CONTAINER...]",
		Short: "Show the details of containers",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				list := func() ([]string, error) {
					found, err := f.List(ctx, c)
					return selection.IDs(found), err
				}
				return i.Print(cmd, args, list, func(id string, verbose bool) (*verb.Status, error) {
					return inspectContainer(ctx, c, id, verbose)
				})
			})
		},
	}
	i.Register(cmd)
	f.Register(cmd)
	cmd.Flags().BoolVarP(&f.All, "all", "a", false, "containers in any state, if none is named")
	return cmd
}

func inspectContainer(ctx context.Context, c *connection.Clients, id string, verbose bool) (*verb.Status, error) {
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
	if err != nil {
		return nil, fmt.Errorf("cannot inspect the container %s: %w", id, err)
	}
	s := resp.Status
	status, err := verb.Described(s, containerTimes(s))
	if err != nil {
		return nil, err
	}
	return &verb.Status{Value: output.WithInfo(status, resp.Info), Table: func(w io.Writer) { containerLines(w, resp, verbose, time.Now()) }}, nil
}

// containerTimes are zero where nothing has happened yet.
func containerTimes(s *runtimeapi.ContainerStatus) map[string]time.Time {
	times := map[string]time.Time{"createdAt": time.Unix(0, s.CreatedAt), "startedAt": {}, "finishedAt": {}}
	if s.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		times["startedAt"] = time.Unix(0, s.StartedAt)
	}
	if s.State == runtimeapi.ContainerState_CONTAINER_EXITED || s.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN && s.FinishedAt > 0 {
		times["finishedAt"] = time.Unix(0, s.FinishedAt)
	}
	return times
}

func containerLines(w io.Writer, resp *runtimeapi.ContainerStatusResponse, verbose bool, now time.Time) {
	s := resp.Status
	output.Field(w, "ID", s.Id)
	output.Field(w, "Name", s.GetMetadata().GetName())
	if attempt := s.GetMetadata().GetAttempt(); attempt != 0 {
		fmt.Fprintf(w, "Attempt: %d\n", attempt)
	}
	output.Field(w, "State", s.State.String())
	output.Field(w, "Created", output.Ago(s.CreatedAt, now))
	if s.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		output.Field(w, "Started", output.Ago(s.StartedAt, now))
	}
	if s.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		if s.FinishedAt > 0 {
			output.Field(w, "Finished", output.Ago(s.FinishedAt, now))
		}
		fmt.Fprintf(w, "Exit Code: %d\n", s.ExitCode)
	}
	output.Pairs(w, "Labels", s.Labels)
	output.Pairs(w, "Annotations", s.Annotations)
	if verbose {
		fmt.Fprintf(w, "Info: %v\n", resp.Info)
	}
}
