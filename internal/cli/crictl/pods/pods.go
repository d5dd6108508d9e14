// Package pods has the verbs of crictl for pods, one a file.
package pods

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
)

// NewPods returns `crictl pods`.
func NewPods(s *connection.Settings) *cobra.Command {
	var f selection.Pods
	var format output.Format
	var quiet, verbose, full bool
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				found, err := f.List(ctx, c)
				if err != nil {
					return err
				}
				return format.Message(cmd.OutOrStdout(), &runtimeapi.ListPodSandboxResponse{Items: found}, func(w io.Writer) error {
					now := time.Now()
					if !quiet && !verbose {
						return podTable(w, found, full, now)
					}
					for _, pod := range found {
						if quiet {
							fmt.Fprintln(w, pod.Id)
							continue
						}
						describePod(w, pod)
					}
					return nil
				})
			})
		},
	}
	flags := cmd.Flags()
	f.Register(cmd)
	format.Register(cmd, output.Table, output.JSON, output.YAML)
	flags.StringVar(&f.ID, "id", "", "only the pod of this id")
	flags.BoolVarP(&quiet, "quiet", "q", false, "ids only")
	flags.BoolVarP(&verbose, "verbose", "v", false, "labels and annotations, too")
	flags.BoolVar(&full, "no-trunc", false, "do not truncate ids")
	return cmd
}

func podTable(w io.Writer, found []*runtimeapi.PodSandbox, full bool, now time.Time) error {
	var rows [][]string
	for _, pod := range found {
		meta := pod.GetMetadata()
		rows = append(rows, []string{
			output.Short(pod.Id, full), output.Ago(pod.CreatedAt, now), output.State(pod.State), meta.GetName(), meta.GetNamespace(),
			strconv.FormatUint(uint64(meta.GetAttempt()), 10), cmp.Or(pod.RuntimeHandler, "(default)"),
		})
	}
	return output.WriteTable(w, []string{"POD ID", "CREATED", "STATE", "NAME", "NAMESPACE", "ATTEMPT", "RUNTIME"}, rows)
}

func describePod(w io.Writer, pod *runtimeapi.PodSandbox) {
	output.Field(w, "ID", pod.Id)
	output.Field(w, "Name", pod.GetMetadata().GetName())
	output.Field(w, "UID", pod.GetMetadata().GetUid())
	output.Field(w, "Namespace", pod.GetMetadata().GetNamespace())
	if attempt := pod.GetMetadata().GetAttempt(); attempt != 0 {
		fmt.Fprintf(w, "Attempt: %d\n", attempt)
	}
	output.Field(w, "Status", output.State(pod.State))
	fmt.Fprintf(w, "Created: %v\n", time.Unix(0, pod.CreatedAt))
	output.Pairs(w, "Labels", pod.Labels)
	output.Pairs(w, "Annotations", pod.Annotations)
	fmt.Fprintf(w, "Runtime: %s\n\n", cmp.Or(pod.RuntimeHandler, "(default)"))
}
