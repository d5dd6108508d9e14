// Package eventscmd holds `berth events`. It is a plain CRI client.
package eventscmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
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
		Short: "Print what happens to pods, containers and pulls of images, until Ctrl-C",
		Long: "events begins with the events that lead to the present state, and continues with every new one. An event is\n" +
			"created, started, stopped or deleted, of a container or of a pod. With -o json each event is one object with the\n" +
			"statuses that the pod and its containers have at that moment.\n\n" +
			"A pull of an image is pulling when it begins, also for a kubelet, and pulled or pull-failed when it ends, with what\n" +
			"it has fetched, its duration and its error; `berth jobs --watch` has the stages between. With -o json its object has\n" +
			"the field pull. Events of pulls are left out with --pod, --namespace and --container, and for other runtimes, which\n" +
			"do not report them.",
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
				printed := &counter{most: count}
				emit := func(event any, line string) error {
					return printed.count(func() error {
						return output.Print(cmd.OutOrStdout(), event, func(w io.Writer) error {
							_, err := fmt.Fprintln(w, line)
							return err
						})
					})
				}
				return follow(ctx, conn, &which, emit)
			})
		},
	}
	cmd.Flags().StringVar(&which.pod, "pod", "", "only events of pods of this name, or NAMESPACE/NAME")
	cmd.Flags().StringVarP(&which.namespace, "namespace", "n", "", "only events of pods in this namespace")
	cmd.Flags().StringVarP(&which.container, "container", "c", "", "only events of containers of this name")
	cmd.Flags().StringVar(&which.id, "id", "", "only events of this sandbox, container or pull: an ID or a prefix of one")
	cmd.Flags().StringSliceVar(&which.types, "type", nil, "only these events: "+strings.Join(types(), ", "))
	cmd.Flags().IntVar(&count, "count", 0, "end after this many events (0: never)")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(types(), cobra.ShellCompDirectiveNoFileComp))
	endpoint.Register(cmd)
	output.Register(cmd)
	return cmd
}

// follow calls emit with each event that the filter wants, until the runtime or ctx ends, or emit fails.
func follow(ctx context.Context, conn *criclient.Conn, which *filter, emit func(event any, line string) error) error {
	all, ctx := errgroup.WithContext(ctx)
	ctx, ended := context.WithCancel(ctx)
	all.Go(func() error {
		defer ended()
		return followContainers(ctx, conn, which, func(event *runtimeapi.ContainerEventResponse) error { return emit(event, line(event)) })
	})
	if which.pulls() {
		all.Go(func() error { return followPulls(ctx, conn.Berth, which, emit) })
	}
	if err := all.Wait(); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// followContainers calls emit with each event of containers and pods.
func followContainers(ctx context.Context, conn *criclient.Conn, which *filter, emit func(*runtimeapi.ContainerEventResponse) error) error {
	events, err := conn.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
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
	}
}

// errEnough ends a watch that has printed as many events as were asked for.
var errEnough = errors.New("enough events")

// counter prints one event at a time, and most of them, 0 for all.
type counter struct {
	mu            sync.Mutex
	printed, most int
}

func (c *counter) count(show func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > 0 && c.printed == c.most {
		return errEnough
	}
	if err := show(); err != nil {
		return err
	}
	if c.printed++; c.printed == c.most {
		return errEnough
	}
	return nil
}

// types are the events in their order.
func types() []string {
	return []string{"created", "started", "stopped", "deleted", pulling, pulled, pullFailed}
}

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

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

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
	text := fmt.Sprintf("%s  %-9s  %-7s  %s  %s", time.Unix(0, event.GetCreatedAt()).Format(timeFormat),
		of, typeOf(event), show.ID(event.GetContainerId()), name)
	if typeOf(event) == "stopped" && container != nil {
		text += fmt.Sprintf("  exit code %d", container.GetExitCode())
		if container.GetReason() != "" {
			text += " (" + container.GetReason() + ")"
		}
	}
	return text
}
