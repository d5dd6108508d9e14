// Package eventscmd holds `berth events`. It is a plain CRI client.
package eventscmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// New returns `berth events`.
func New() *cobra.Command {
	var endpoint connect.Flag
	var output show.Flag
	var which filter
	var count int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what happens to pods and containers, until Ctrl-C",
		Long: "events begins with the events that lead to the present state, and continues with every new one. An event is\n" +
			"created, started, stopped or deleted, of a container or of a pod. With -o json each event is one object with the\n" +
			"statuses that the pod and its containers have at that moment.",
		Example: "  berth events --namespace kube-system --type stopped\n  berth events --pod web -o json | jq .containersStatuses",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := which.check(); err != nil {
				return err
			}
			if count < 0 {
				return fmt.Errorf("--count %d: want 0 (never) or more: %w", count, errs.Invalid)
			}
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				return follow(ctx, conn, &which, count, func(event *runtimeapi.ContainerEventResponse) error {
					return output.Print(cmd.OutOrStdout(), event, func(w io.Writer) error {
						_, err := fmt.Fprintln(w, line(event))
						return err
					})
				})
			})
		},
	}
	cmd.Flags().StringVar(&which.pod, "pod", "", "only events of pods of this name, or NAMESPACE/NAME")
	cmd.Flags().StringVarP(&which.namespace, "namespace", "n", "", "only events of pods in this namespace")
	cmd.Flags().StringVarP(&which.container, "container", "c", "", "only events of containers of this name")
	cmd.Flags().StringVar(&which.id, "id", "", "only events of this sandbox or container: an ID or a prefix of one")
	cmd.Flags().StringSliceVar(&which.types, "type", nil, "only these events: "+strings.Join(types(), ", "))
	cmd.Flags().IntVar(&count, "count", 0, "end after this many events (0: never)")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(types(), cobra.ShellCompDirectiveNoFileComp))
	endpoint.Register(cmd)
	output.Register(cmd)
	return cmd
}

// follow calls emit with each event that the filter wants.
func follow(ctx context.Context, conn *criclient.Conn, which *filter, count int, emit func(*runtimeapi.ContainerEventResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := conn.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	for printed := 0; count == 0 || printed < count; {
		event, err := events.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil // the runtime ends
		case err != nil:
			return fmt.Errorf("cannot read events: %w", err)
		case !which.wants(event):
			continue
		}
		if err := emit(event); err != nil {
			return err
		}
		printed++
	}
	return nil
}

// types are the events in their order.
func types() []string { return []string{"created", "started", "stopped", "deleted"} }

// typeOf is the end of CRI's word: CONTAINER_CREATED_EVENT.
func typeOf(event *runtimeapi.ContainerEventResponse) string {
	text := strings.TrimPrefix(event.GetContainerEventType().String(), "CONTAINER_")
	return strings.ToLower(strings.TrimSuffix(text, "_EVENT"))
}

// filter chooses events. Empty fields choose all.
type filter struct {
	pod, namespace, container, id string
	types                         []string
}

func (f *filter) check() error {
	for _, name := range f.types {
		if !slices.Contains(types(), name) {
			return fmt.Errorf("--type %q: want one of %s: %w", name, strings.Join(types(), ", "), errs.Invalid)
		}
	}
	return nil
}

func (f *filter) wants(event *runtimeapi.ContainerEventResponse) bool {
	meta := event.GetPodSandboxStatus().GetMetadata()
	pods := []string{"", meta.GetName(), meta.GetNamespace() + "/" + meta.GetName()}
	container := containerOf(event)
	return slices.Contains(pods, f.pod) &&
		(f.namespace == "" || f.namespace == meta.GetNamespace()) &&
		(f.container == "" || f.container == container.GetMetadata().GetName()) &&
		strings.HasPrefix(event.GetContainerId(), f.id) &&
		(len(f.types) == 0 || slices.Contains(f.types, typeOf(event)))
}

// containerOf is the status of the container that the event is of, nil for an event of a pod, and for a container that
// is gone.
func containerOf(event *runtimeapi.ContainerEventResponse) *runtimeapi.ContainerStatus {
	for _, status := range event.GetContainersStatuses() {
		if status.GetId() == event.GetContainerId() {
			return status
		}
	}
	return nil
}

// line is an event for people.
func line(event *runtimeapi.ContainerEventResponse) string {
	meta, container := event.GetPodSandboxStatus().GetMetadata(), containerOf(event)
	of := "container"
	if event.GetContainerId() == event.GetPodSandboxStatus().GetId() {
		of = "pod"
	}
	name := show.Or(strings.Trim(meta.GetNamespace()+"/"+meta.GetName(), "/"))
	if container != nil {
		name += "/" + container.GetMetadata().GetName()
	}
	text := fmt.Sprintf("%s  %-9s  %-7s  %s  %s", time.Unix(0, event.GetCreatedAt()).Format("2006-01-02T15:04:05.000Z07:00"),
		of, typeOf(event), show.ID(event.GetContainerId()), name)
	if typeOf(event) == "stopped" && container != nil {
		text += fmt.Sprintf("  exit code %d", container.GetExitCode())
		if container.GetReason() != "" {
			text += " (" + container.GetReason() + ")"
		}
	}
	return text
}
