// Package containers has the verbs of crictl for containers, one a file.
package containers

import (
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

// psFlags are the flags of ps.
type psFlags struct {
	selection.Containers
	format                        output.Format
	quiet, verbose, full, resolve bool
}

// NewPs returns `crictl ps`.
func NewPs(s *connection.Settings) *cobra.Command {
	var f psFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List containers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error { return ps(ctx, cmd.OutOrStdout(), c, &f) })
		},
	}
	flags := cmd.Flags()
	f.Containers.Register(cmd)
	f.format.Register(cmd, output.Table, output.JSON, output.YAML)
	flags.StringVar(&f.ID, "id", "", "only the container of this id")
	flags.BoolVarP(&f.All, "all", "a", false, "containers in any state")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "ids only")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "labels and annotations, too")
	flags.BoolVar(&f.full, "no-trunc", false, "do not truncate ids")
	flags.BoolVarP(&f.resolve, "resolve-image-path", "r", false, "names of images in place of ids")
	return cmd
}

func ps(ctx context.Context, w io.Writer, c *connection.Clients, f *psFlags) error {
	found, err := f.List(ctx, c)
	if err != nil {
		return err
	}
	return f.format.Message(w, &runtimeapi.ListContainersResponse{Containers: found}, func(w io.Writer) error {
		switch {
		case f.quiet:
			for _, container := range found {
				fmt.Fprintln(w, container.Id)
			}
			return nil
		case f.verbose:
			for _, container := range found {
				describeContainer(w, container, time.Now())
			}
			return nil
		}
		return f.table(ctx, w, c, found)
	})
}

func (f *psFlags) table(ctx context.Context, w io.Writer, c *connection.Clients, found []*runtimeapi.Container) error {
	var rows [][]string
	now := time.Now()
	for _, container := range found {
		image := container.GetImage().GetImage()
		if f.resolve {
			resp, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: container.GetImage()})
			if err != nil {
				return fmt.Errorf("cannot find the image of %s: %w", container.Id, err)
			}
			if tags := resp.GetImage().GetRepoTags(); len(tags) > 0 {
				image = tags[0]
			}
		} else if output.IsDigest(image) {
			image = output.Short(image, f.full)
		}
		rows = append(rows, []string{
			output.Short(container.Id, f.full), image, output.Ago(container.CreatedAt, now), output.State(container.State),
			container.GetMetadata().GetName(), strconv.FormatUint(uint64(container.GetMetadata().GetAttempt()), 10),
			output.Short(container.PodSandboxId, f.full), selection.PodLabel(container, selection.LabelPodName), selection.PodLabel(container, selection.LabelPodNamespace),
		})
	}
	return output.WriteTable(w, []string{"CONTAINER", "IMAGE", "CREATED", "STATE", "NAME", "ATTEMPT", "POD ID", "POD", "NAMESPACE"}, rows)
}

func describeContainer(w io.Writer, c *runtimeapi.Container, now time.Time) {
	output.Field(w, "ID", c.Id)
	output.Field(w, "PodID", c.PodSandboxId)
	output.Field(w, "Namespace", selection.PodLabel(c, selection.LabelPodNamespace))
	output.Field(w, "Name", c.GetMetadata().GetName())
	fmt.Fprintf(w, "Attempt: %d\n", c.GetMetadata().GetAttempt())
	output.Field(w, "State", output.State(c.State))
	output.Field(w, "Image", c.GetImage().GetImage())
	output.Field(w, "Created", output.Ago(c.CreatedAt, now))
	output.Pairs(w, "Labels", c.Labels)
	output.Pairs(w, "Annotations", c.Annotations)
	fmt.Fprintln(w)
}
