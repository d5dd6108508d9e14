// Package images has the verbs of crictl for images, one a file.
package images

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
)

// none stands for a name that an image lacks.
const none = "<none>"

// imageColumns are the columns of the table of images.
type imageColumns struct{ digests, pinned, full bool }

// NewImages returns `crictl images`.
func NewImages(s *connection.Settings) *cobra.Command {
	var format output.Format
	var columns imageColumns
	var conditions []string
	var quiet, verbose bool
	cmd := &cobra.Command{
		Use:     "images [REPOSITORY[:TAG]]",
		Aliases: []string{"image", "img"},
		Short:   "List images",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				found, err := selection.Images(ctx, c, strings.Join(args, ""), conditions)
				if err != nil {
					return err
				}
				return format.Message(cmd.OutOrStdout(), &runtimeapi.ListImagesResponse{Images: found}, func(w io.Writer) error {
					if !quiet && !verbose {
						return columns.table(w, found)
					}
					for _, image := range found {
						if quiet {
							fmt.Fprintln(w, image.Id)
							continue
						}
						describeImage(w, image)
					}
					return nil
				})
			})
		},
	}
	flags := cmd.Flags()
	format.Register(cmd, output.Table, output.JSON, output.YAML)
	selection.RegisterConditions(cmd, &conditions)
	flags.BoolVarP(&quiet, "quiet", "q", false, "ids only")
	flags.BoolVarP(&verbose, "verbose", "v", false, "all fields")
	flags.BoolVar(&columns.digests, "digests", false, "show digests")
	flags.BoolVar(&columns.full, "no-trunc", false, "do not truncate ids")
	flags.BoolVar(&columns.pinned, "pinned", false, "show whether the image is pinned")
	return cmd
}

// table has a row for each name of each image.
func (c *imageColumns) table(w io.Writer, images []*runtimeapi.Image) error {
	row := func(name, tag, digest, id, size, pinned string) []string {
		all := []string{name, tag}
		if c.digests {
			all = append(all, digest)
		}
		if all = append(all, id, size); c.pinned {
			all = append(all, pinned)
		}
		return all
	}
	var rows [][]string
	for _, image := range images {
		repository, digest := none, none
		if len(image.RepoDigests) > 0 {
			repository, digest, _ = strings.Cut(image.RepoDigests[0], "@")
		}
		tags := image.RepoTags
		if len(tags) == 0 {
			tags = []string{repository + ":" + none}
		}
		for _, tag := range tags {
			colon := max(0, strings.LastIndex(tag, ":"))
			rows = append(rows, row(tag[:colon], strings.TrimPrefix(tag[colon:], ":"), output.Short(digest, c.full),
				output.Short(image.Id, c.full), output.Size(image.Size, 3), strconv.FormatBool(image.Pinned)))
		}
	}
	return output.WriteTable(w, row("IMAGE", "TAG", "DIGEST", "IMAGE ID", "SIZE", "PINNED"), rows)
}

func describeImage(w io.Writer, i *runtimeapi.Image) {
	output.Field(w, "ID", i.Id)
	for _, tag := range i.RepoTags {
		output.Field(w, "RepoTags", tag)
	}
	for _, digest := range i.RepoDigests {
		output.Field(w, "RepoDigests", digest)
	}
	if i.Size != 0 {
		fmt.Fprintf(w, "Size: %d\n", i.Size)
	}
	if i.Uid != nil {
		fmt.Fprintf(w, "Uid: %d\n", i.Uid.Value)
	}
	output.Field(w, "Username", i.Username)
	if i.Pinned {
		output.Field(w, "Pinned", "true")
	}
	fmt.Fprintln(w)
}
