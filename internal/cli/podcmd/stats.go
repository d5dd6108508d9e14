package podcmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/podusage"
)

// sampleTime is the time between the two samples that a CPU rate needs.
const sampleTime = time.Second

func (c *commands) newStats() *cobra.Command {
	var output show.Flag
	cmd := &cobra.Command{
		Use:               "stats [POD]",
		Short:             "Show what a pod, or each pod, uses: CPU, memory, network, disk",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completePods(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				filter := &runtimeapi.PodSandboxStatsFilter{}
				if len(args) == 1 {
					pod, err := findPod(ctx, conn, args[0])
					if err != nil {
						return err
					}
					filter.Id = pod.Id
				}
				before, after, err := twice(ctx, func() (*runtimeapi.ListPodSandboxStatsResponse, error) {
					return conn.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{Filter: filter})
				})
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), after, func(w io.Writer) error {
					return statsTable(w, before.GetStats(), after.GetStats())
				})
			})
		},
	}
	output.Register(cmd)
	return cmd
}

// twice reads statistics twice: CRI reports totals, and users need a rate.
func twice[T any](ctx context.Context, read func() (T, error)) (before, after T, err error) {
	if before, err = read(); err != nil {
		return before, after, err
	}
	select {
	case <-ctx.Done():
		return before, after, ctx.Err()
	case <-time.After(sampleTime):
	}
	after, err = read()
	return before, after, err
}

func statsTable(w io.Writer, before, after []*runtimeapi.PodSandboxStats) error {
	earlier := map[string]*runtimeapi.ContainerStats{}
	for _, pod := range before {
		for _, container := range pod.GetLinux().GetContainers() {
			earlier[container.GetAttributes().GetId()] = container
		}
	}
	var rows [][]string
	for _, pod := range after {
		meta := pod.GetAttributes().GetMetadata()
		name := meta.GetNamespace() + "/" + meta.GetName()
		eth := pod.GetLinux().GetNetwork().GetDefaultInterface()
		traffic := show.Size(eth.GetRxBytes().GetValue()) + " / " + show.Size(eth.GetTxBytes().GetValue())
		for i, container := range pod.GetLinux().GetContainers() {
			if i > 0 {
				name, traffic = "", "" // they are the pod's, shown once
			}
			rows = append(rows, []string{
				name, container.GetAttributes().GetMetadata().GetName(),
				cpuRate(earlier[container.GetAttributes().GetId()], container),
				show.Size(container.GetMemory().GetWorkingSetBytes().GetValue()),
				show.Size(container.GetWritableLayer().GetUsedBytes().GetValue()), traffic,
			})
		}
	}
	return show.Table(w, []string{"POD", "CONTAINER", "CPU", "MEMORY", "WRITTEN", "RECEIVED / SENT"}, rows)
}

// cpuRate is in percent of one processor, "-" for a container that is new.
func cpuRate(before, after *runtimeapi.ContainerStats) string {
	cores := podusage.CPU(before.GetCpu(), after.GetCpu())
	if before == nil || cores == podusage.Unknown {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*cores)
}
