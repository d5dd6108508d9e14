package pods

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
)

// statsFlags are the flags of statsp.
type statsFlags struct {
	format  output.Format
	id      string
	labels  []string
	watch   bool
	seconds int
}

// NewStats returns `crictl statsp`.
func NewStats(s *connection.Settings) *cobra.Command {
	var f statsFlags
	cmd := &cobra.Command{
		Use:   "statsp [POD]",
		Short: "Show the CPU and memory usage of pods",
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
	flags.StringVar(&f.id, "id", "", "only the pod of this id")
	flags.StringArrayVar(&f.labels, "label", nil, "only those with the label KEY=VALUE")
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
	return f.format.Message(w, &runtimeapi.ListPodSandboxStatsResponse{Stats: before}, func(w io.Writer) error {
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
		return output.WriteTable(w, []string{"POD", "POD ID", "CPU %", "MEM"}, statsRows(before, after))
	})
}

func (f *statsFlags) ask(ctx context.Context, c *connection.Clients) ([]*runtimeapi.PodSandboxStats, error) {
	filter := &runtimeapi.PodSandboxStatsFilter{Id: f.id}
	var err error
	if filter.LabelSelector, err = selection.ParseLabels(f.labels); err != nil {
		return nil, err
	}
	resp, err := c.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("cannot read the usage of pods: %w", err)
	}
	slices.SortFunc(resp.Stats, func(a, b *runtimeapi.PodSandboxStats) int {
		return cmp.Compare(a.GetAttributes().GetId(), b.GetAttributes().GetId())
	})
	return resp.Stats, nil
}

// statsRows leaves out pods that are new, and those that use nothing.
func statsRows(before, after []*runtimeapi.PodSandboxStats) [][]string {
	earlier := map[string]*runtimeapi.PodSandboxStats{}
	for _, s := range before {
		earlier[s.GetAttributes().GetId()] = s
	}
	var rows [][]string
	for _, s := range after {
		cpu, memory := s.GetLinux().GetCpu(), s.GetLinux().GetMemory().GetWorkingSetBytes().GetValue()
		old := earlier[s.GetAttributes().GetId()]
		if old == nil || cpu.GetUsageCoreNanoSeconds().GetValue() == 0 && memory == 0 {
			continue
		}
		rows = append(rows, []string{
			s.GetAttributes().GetMetadata().GetName(), output.Short(s.GetAttributes().GetId(), false),
			output.CPUShare(old.GetLinux().GetCpu(), cpu), output.Size(memory, 4),
		})
	}
	return rows
}
