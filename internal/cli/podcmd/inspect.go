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

func (c *commands) newInspect() *cobra.Command {
	var output show.Flag
	cmd := &cobra.Command{
		Use:               "inspect POD",
		Short:             "Show the details of a pod",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completePods(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				found, err := inspect(ctx, conn, args[0])
				if err != nil {
					return err
				}
				value, err := found.value()
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), value, func(w io.Writer) error { return found.print(w, time.Now()) })
			})
		},
	}
	output.Register(cmd)
	return cmd
}

// inspected is the status of a pod and of its containers.
type inspected struct {
	pod        *runtimeapi.PodSandboxStatusResponse
	containers []*runtimeapi.ContainerStatusResponse
}

func inspect(ctx context.Context, conn *criclient.Conn, name string) (*inspected, error) {
	pod, err := findPod(ctx, conn, name)
	if err != nil {
		return nil, err
	}
	var found inspected
	found.pod, err = conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.Id, Verbose: true})
	if err != nil {
		return nil, err
	}
	containers, err := containersOf(ctx, conn, pod)
	if err != nil {
		return nil, err
	}
	for _, container := range containers {
		status, err := conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container.Id, Verbose: true})
		if err != nil {
			return nil, err
		}
		found.containers = append(found.containers, status)
	}
	return &found, nil
}

// value is what -o json prints.
func (i *inspected) value() (any, error) {
	status, err := show.Message(i.pod.Status)
	if err != nil {
		return nil, err
	}
	containers := []any{}
	for _, c := range i.containers {
		value, err := containerValue(c)
		if err != nil {
			return nil, err
		}
		containers = append(containers, value)
	}
	return map[string]any{"status": status, "info": show.Info(i.pod.Info), "containers": containers}, nil
}

func containerValue(c *runtimeapi.ContainerStatusResponse) (any, error) {
	status, err := show.Message(c.Status)
	if err != nil {
		return nil, err
	}
	return map[string]any{"status": status, "info": show.Info(c.Info)}, nil
}

func (i *inspected) print(w io.Writer, now time.Time) error {
	s := i.pod.Status
	ips := []string{s.GetNetwork().GetIp()}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		ips = append(ips, more.Ip)
	}
	rows := [][]string{
		{"Namespace:", s.Metadata.GetNamespace()},
		{"UID:", s.Metadata.GetUid()},
		{"ID:", s.Id},
		{"State:", state(s.State)},
		{"Handler:", show.Or(s.RuntimeHandler)},
		{"IP:", show.Or(strings.Join(ips, ", "))},
		{"Created:", show.Ago(s.CreatedAt, now) + " ago"},
	}
	if err := show.Table(w, []string{"Name:", s.Metadata.GetName()}, rows); err != nil {
		return err
	}
	for _, container := range i.containers {
		fmt.Fprintln(w)
		if err := printContainer(w, container, now); err != nil {
			return err
		}
	}
	return nil
}

func printContainer(w io.Writer, resp *runtimeapi.ContainerStatusResponse, now time.Time) error {
	c := resp.Status
	rows := [][]string{
		{"  ID:", c.Id},
		{"  Image:", show.Or(c.GetImage().GetImage())},
		{"  State:", containerState(c)},
		{"  Started:", show.Ago(c.StartedAt, now)},
		{"  Log:", show.Or(c.LogPath)},
	}
	if c.Message != "" {
		rows = append(rows, []string{"  Message:", c.Message})
	}
	if starter := starterOf(resp.Info); starter != "" {
		rows = append(rows, []string{"  Starter:", starter})
	}
	return show.Table(w, []string{"Container:", fmt.Sprintf("%s (attempt %d)", c.Metadata.GetName(), c.Metadata.GetAttempt())}, rows)
}

// starterOf is what created a container, and why it was not berth's own init, of a verbose status; "" if that does not say.
func starterOf(info map[string]string) string {
	var shown struct{ Starter, StarterReason string }
	if json.Unmarshal([]byte(info["info"]), &shown) != nil || shown.Starter == "" {
		return ""
	}
	if shown.StarterReason == "" {
		return shown.Starter
	}
	return shown.Starter + ": " + shown.StarterReason
}

func containerState(c *runtimeapi.ContainerStatus) string {
	text := state(c.State)
	if c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		text += fmt.Sprintf(", exit code %d", c.ExitCode)
		if c.Reason != "" {
			text += " (" + c.Reason + ")"
		}
	}
	return text
}
