package containers

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
)

// statsFlags are the flags of stats.
type statsFlags struct {
	format     output.Format
	id, pod    string
	labels     []string
	all, watch bool
	seconds    int
}

// NewStats returns `crictl stats`.
func NewStats(s *connection.Settings) *cobra.Command {
	var f statsFlags
	cmd := &cobra.Command{
		Use:   "stats [CONTAINER]",
		Short: "Show the CPU, memory and disk usage of containers",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.id = cmp.Or(f.id, strings.Join(args, ""))
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				err := f.show(ctx, cmd.OutOrStdout(), c)
				for err == nil && f.watch && ctx.Err() == nil {
					err = f.show(ctx, cmd.OutOrStdout(), c)
				}
				return err
			})
		},
	}
	flags := cmd.Flags()
	f.format.Register(cmd, output.Table, output.JSON, output.YAML)
	flags.StringVar(&f.id, "id", "", "only the container of this id")
	flags.StringVarP(&f.pod, "pod", "p", "", "only those of the pod of this id")
	flags.StringArrayVar(&f.labels, "label", nil, "only those with the label KEY=VALUE")
	flags.BoolVarP(&f.all, "all", "a", false, "also show containers that do not run")
	flags.IntVarP(&f.seconds, "seconds", "s", 1, "seconds between the two samples of a rate")
	flags.BoolVarP(&f.watch, "watch", "w", false, "repeat until Ctrl-C")
	return cmd
}

// show prints one response, or the table of two.
func (f *statsFlags) show(ctx context.Context, w io.Writer, c *connection.Clients) error {
	before, err := f.ask(ctx, c)
	if err != nil {
		return err
	}
	return f.format.Message(w, &runtimeapi.ListContainerStatsResponse{Stats: before}, func(w io.Writer) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(f.seconds) * time.Second):
		}
		after, err := f.ask(ctx, c)
		if err != nil {
			return err
		}
		if f.watch {
			fmt.Fprint(w, output.ClearScreen)
		}
		return output.WriteTable(w, []string{"CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP"}, f.rows(before, after))
	})
}

func (f *statsFlags) ask(ctx context.Context, c *connection.Clients) ([]*runtimeapi.ContainerStats, error) {
	filter := &runtimeapi.ContainerStatsFilter{Id: f.id, PodSandboxId: f.pod}
	var err error
	if filter.LabelSelector, err = selection.ParseLabels(f.labels); err != nil {
		return nil, err
	}
	resp, err := c.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("cannot read the usage of containers: %w", err)
	}
	slices.SortFunc(resp.Stats, func(a, b *runtimeapi.ContainerStats) int {
		return cmp.Compare(a.GetAttributes().GetId(), b.GetAttributes().GetId())
	})
	return resp.Stats, nil
}

func (f *statsFlags) rows(before, after []*runtimeapi.ContainerStats) [][]string {
	earlier := map[string]*runtimeapi.ContainerStats{}
	for _, s := range before {
		earlier[s.GetAttributes().GetId()] = s
	}
	var rows [][]string
	for _, s := range after {
		cpu, memory := s.GetCpu().GetUsageCoreNanoSeconds().GetValue(), s.GetMemory().GetWorkingSetBytes().GetValue()
		old := earlier[s.GetAttributes().GetId()]
		if old == nil || !f.all && cpu == 0 && memory == 0 {
			continue
		}
		rows = append(rows, []string{
			output.Short(s.GetAttributes().GetId(), false), s.GetAttributes().GetMetadata().GetName(), output.CPUShare(old.GetCpu(), s.GetCpu()), output.Size(memory, 4),
			output.Size(s.GetWritableLayer().GetUsedBytes().GetValue(), 4), strconv.FormatUint(s.GetWritableLayer().GetInodesUsed().GetValue(), 10),
			output.Size(s.GetSwap().GetSwapUsageBytes().GetValue(), 4),
		})
	}
	return rows
}
