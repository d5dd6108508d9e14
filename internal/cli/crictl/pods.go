package crictl

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func newPods(s *settings) *cobra.Command {
	var f podFilter
	var format format
	var quiet, verbose, full bool
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				found, err := f.list(ctx, c)
				if err != nil {
					return err
				}
				return format.message(cmd.OutOrStdout(), &runtimeapi.ListPodSandboxResponse{Items: found}, func(w io.Writer) error {
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
	f.register(cmd)
	format.register(cmd, asTable, asJSON, asYAML)
	flags.StringVar(&f.id, "id", "", "only the pod of this id")
	flags.BoolVarP(&quiet, "quiet", "q", false, "ids only")
	flags.BoolVarP(&verbose, "verbose", "v", false, "labels and annotations, too")
	flags.BoolVar(&full, "no-trunc", false, "whole ids")
	return cmd
}

func podTable(w io.Writer, found []*runtimeapi.PodSandbox, full bool, now time.Time) error {
	var rows [][]string
	for _, pod := range found {
		meta := pod.GetMetadata()
		rows = append(rows, []string{
			short(pod.Id, full), ago(pod.CreatedAt, now), state(pod.State), meta.GetName(), meta.GetNamespace(),
			strconv.FormatUint(uint64(meta.GetAttempt()), 10), or(pod.RuntimeHandler, "(default)"),
		})
	}
	return table(w, []string{"POD ID", "CREATED", "STATE", "NAME", "NAMESPACE", "ATTEMPT", "RUNTIME"}, rows)
}

func describePod(w io.Writer, pod *runtimeapi.PodSandbox) {
	field(w, "ID", pod.Id)
	field(w, "Name", pod.GetMetadata().GetName())
	field(w, "UID", pod.GetMetadata().GetUid())
	field(w, "Namespace", pod.GetMetadata().GetNamespace())
	if attempt := pod.GetMetadata().GetAttempt(); attempt != 0 {
		fmt.Fprintf(w, "Attempt: %d\n", attempt)
	}
	field(w, "Status", state(pod.State))
	fmt.Fprintf(w, "Created: %v\n", time.Unix(0, pod.CreatedAt))
	pairs(w, "Labels", pod.Labels)
	pairs(w, "Annotations", pod.Annotations)
	fmt.Fprintf(w, "Runtime: %s\n\n", or(pod.RuntimeHandler, "(default)"))
}
