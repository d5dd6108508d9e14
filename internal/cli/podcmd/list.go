package podcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
)

// listed is a pod with its containers.
type listed struct {
	pod        *runtimeapi.PodSandbox
	containers []*runtimeapi.Container
}

// MarshalJSON implements json.Marshaler.
func (l *listed) MarshalJSON() ([]byte, error) {
	pod, err := show.Message(l.pod)
	if err != nil {
		return nil, err
	}
	containers := []json.RawMessage{}
	for _, c := range l.containers {
		msg, err := show.Message(c)
		if err != nil {
			return nil, err
		}
		containers = append(containers, msg)
	}
	return json.Marshal(map[string]any{"pod": pod, "containers": containers})
}

func (c *commands) newList() *cobra.Command {
	var all bool
	var output show.Flag
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list", "ps"},
		Short:   "List pods",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				pods, err := list(ctx, conn, all)
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), pods, func(w io.Writer) error { return table(w, pods, time.Now()) })
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also pods that are stopped")
	output.Register(cmd)
	return cmd
}

func list(ctx context.Context, conn *criclient.Conn, all bool) ([]*listed, error) {
	filter := &runtimeapi.PodSandboxFilter{}
	if !all {
		filter.State = &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	}
	sandboxes, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	containers, err := conn.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	of := map[string][]*runtimeapi.Container{}
	for _, container := range containers.Containers {
		of[container.PodSandboxId] = append(of[container.PodSandboxId], container)
	}
	newestFirst(sandboxes.Items)
	pods := make([]*listed, 0, len(sandboxes.Items))
	for _, sandbox := range sandboxes.Items {
		pods = append(pods, &listed{sandbox, of[sandbox.Id]})
	}
	return pods, nil
}

func table(w io.Writer, pods []*listed, now time.Time) error {
	var rows [][]string
	for _, l := range pods {
		running, restarts := 0, uint32(0)
		names := map[string]bool{}
		for _, container := range l.containers {
			names[container.Metadata.GetName()] = true
			restarts = max(restarts, container.Metadata.GetAttempt())
			if container.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				running++
			}
		}
		rows = append(rows, []string{
			show.ID(l.pod.Id), podName(l.pod), state(l.pod.State), fmt.Sprintf("%d/%d", running, len(names)),
			fmt.Sprint(restarts), show.Ago(l.pod.CreatedAt, now),
		})
	}
	return show.Table(w, []string{"ID", "POD", "STATE", "RUNNING", "RESTARTS", "AGE"}, rows)
}

// state is the end of CRI's word: "ready", "running".
func state(s fmt.Stringer) string {
	text := s.String()
	return strings.ToLower(text[strings.Index(text, "_")+1:])
}
