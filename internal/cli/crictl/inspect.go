package crictl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// inspection is what inspect, inspectp and inspecti have in common.
type inspection struct {
	format format
	quiet  bool
}

func (i *inspection) register(cmd *cobra.Command) {
	i.format.register(cmd, asJSON, asYAML, asTemplate, asTable)
	cmd.Flags().BoolVarP(&i.quiet, "quiet", "q", false, "CRI's fields only")
}

// one is the status of one thing: as a value, and for people.
type one struct {
	value map[string]any
	table func(io.Writer)
}

// print prints what ask says of each id. list finds ids where none is named.
func (i *inspection) print(cmd *cobra.Command, ids []string, list func() ([]string, error), ask func(id string, verbose bool) (*one, error)) error {
	if err := i.format.check(); err != nil {
		return err
	}
	var err error
	if len(ids) == 0 {
		if ids, err = list(); err != nil {
			return err
		}
	}
	if len(ids) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "crictl: no id was named, and nothing was found")
		return cmd.Help()
	}
	var values []map[string]any
	for _, id := range ids {
		found, err := ask(id, !i.quiet)
		if err != nil {
			return err
		}
		if i.format.name == asTable {
			found.table(cmd.OutOrStdout())
			continue
		}
		values = append(values, found.value)
	}
	if i.format.name == asTable {
		return nil
	}
	return i.format.statuses(cmd.OutOrStdout(), values)
}

// described is a status as JSON in which times can be read.
func described(status proto.Message, times map[string]time.Time) (json.RawMessage, error) {
	data, err := message(status)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("cannot print as JSON: %w", err)
	}
	for name, at := range times {
		fields[name] = json.RawMessage(`"` + at.Format(time.RFC3339Nano) + `"`)
	}
	return json.Marshal(fields)
}

func newInspect(s *settings) *cobra.Command {
	var i inspection
	var f containerFilter
	cmd := &cobra.Command{
		Use:   "inspect [CONTAINER...]",
		Short: "Show all that is known of containers",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				list := func() ([]string, error) {
					found, err := f.list(ctx, c)
					return ids(found), err
				}
				return i.print(cmd, args, list, func(id string, verbose bool) (*one, error) {
					return inspectContainer(ctx, c, id, verbose)
				})
			})
		},
	}
	i.register(cmd)
	f.register(cmd)
	cmd.Flags().BoolVarP(&f.all, "all", "a", false, "containers in any state, where none is named")
	return cmd
}

func inspectContainer(ctx context.Context, c *clients, id string, verbose bool) (*one, error) {
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
	if err != nil {
		return nil, fmt.Errorf("cannot inspect the container %s: %w", id, err)
	}
	s := resp.Status
	status, err := described(s, containerTimes(s))
	if err != nil {
		return nil, err
	}
	return &one{withInfo(status, resp.Info), func(w io.Writer) { containerLines(w, resp, verbose, time.Now()) }}, nil
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
	field(w, "ID", s.Id)
	field(w, "Name", s.GetMetadata().GetName())
	if attempt := s.GetMetadata().GetAttempt(); attempt != 0 {
		fmt.Fprintf(w, "Attempt: %d\n", attempt)
	}
	field(w, "State", s.State.String())
	field(w, "Created", ago(s.CreatedAt, now))
	if s.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		field(w, "Started", ago(s.StartedAt, now))
	}
	if s.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		if s.FinishedAt > 0 {
			field(w, "Finished", ago(s.FinishedAt, now))
		}
		fmt.Fprintf(w, "Exit Code: %d\n", s.ExitCode)
	}
	pairs(w, "Labels", s.Labels)
	pairs(w, "Annotations", s.Annotations)
	if verbose {
		fmt.Fprintf(w, "Info: %v\n", resp.Info)
	}
}

// identified is what has an id.
type identified interface{ GetId() string }

func ids[T identified](all []T) []string {
	var found []string
	for _, one := range all {
		found = append(found, one.GetId())
	}
	return found
}
