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

// psFlags are what ps shows, and how.
type psFlags struct {
	containerFilter
	format                        format
	quiet, verbose, full, resolve bool
}

func newPs(s *settings) *cobra.Command {
	var f psFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List containers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error { return ps(ctx, cmd.OutOrStdout(), c, &f) })
		},
	}
	flags := cmd.Flags()
	f.containerFilter.register(cmd)
	f.format.register(cmd, asTable, asJSON, asYAML)
	flags.StringVar(&f.id, "id", "", "only the container of this id")
	flags.BoolVarP(&f.all, "all", "a", false, "containers in any state")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "ids only")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "labels and annotations, too")
	flags.BoolVar(&f.full, "no-trunc", false, "whole ids")
	flags.BoolVarP(&f.resolve, "resolve-image-path", "r", false, "names of images in place of ids")
	return cmd
}

func ps(ctx context.Context, w io.Writer, c *clients, f *psFlags) error {
	found, err := f.list(ctx, c)
	if err != nil {
		return err
	}
	return f.format.message(w, &runtimeapi.ListContainersResponse{Containers: found}, func(w io.Writer) error {
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

func (f *psFlags) table(ctx context.Context, w io.Writer, c *clients, found []*runtimeapi.Container) error {
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
		} else if isDigest(image) {
			image = short(image, f.full)
		}
		rows = append(rows, []string{
			short(container.Id, f.full), image, ago(container.CreatedAt, now), state(container.State),
			container.GetMetadata().GetName(), strconv.FormatUint(uint64(container.GetMetadata().GetAttempt()), 10),
			short(container.PodSandboxId, f.full), podLabel(container, labelPodName), podLabel(container, labelPodNamespace),
		})
	}
	return table(w, []string{"CONTAINER", "IMAGE", "CREATED", "STATE", "NAME", "ATTEMPT", "POD ID", "POD", "NAMESPACE"}, rows)
}

func describeContainer(w io.Writer, c *runtimeapi.Container, now time.Time) {
	field(w, "ID", c.Id)
	field(w, "PodID", c.PodSandboxId)
	field(w, "Namespace", podLabel(c, labelPodNamespace))
	field(w, "Name", c.GetMetadata().GetName())
	fmt.Fprintf(w, "Attempt: %d\n", c.GetMetadata().GetAttempt())
	field(w, "State", state(c.State))
	field(w, "Image", c.GetImage().GetImage())
	field(w, "Created", ago(c.CreatedAt, now))
	pairs(w, "Labels", c.Labels)
	pairs(w, "Annotations", c.Annotations)
	fmt.Fprintln(w)
}
