package imagecmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
)

func (c *commands) newLayers() *cobra.Command {
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "layers",
		Short: "List the layers of all images",
		Long:  "layers lists the layers of all images, the lowest first. An archive to import may omit them. Only berth supports this.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				images, err := conn.Berth.ListLayers(ctx)
				if err != nil {
					return err
				}
				if images == nil {
					images = []berthapi.LayeredImage{} // none is an empty list to programs, too
				}
				return output.Print(cmd.OutOrStdout(), images, func(w io.Writer) error { return layerTable(w, images) })
			})
		},
	}
	output.Register(cmd)
	return cmd
}

func layerTable(w io.Writer, images []berthapi.LayeredImage) error {
	var rows [][]string
	for _, img := range images {
		for _, l := range img.Layers {
			rows = append(rows, []string{show.Or(strings.Join(img.Tags, " ")), show.ID(img.ID), show.ID(l.DiffID), show.ID(l.Digest), show.Size(uint64(max(l.Size, 0)))})
		}
	}
	return show.Table(w, []string{"IMAGE", "ID", "LAYER", "CONTENT", "SIZE"}, rows)
}

func (c *commands) newTag() *cobra.Command {
	return &cobra.Command{
		Use:               "tag IMAGE NAME...",
		Short:             "Add names to an image",
		Long:              "tag adds names to an image, which is given by name or ID. A name of another image moves to this one. Only berth supports this.",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				if err := conn.Berth.TagImage(ctx, berthapi.TagRequest{Image: args[0], Names: args[1:]}); err != nil {
					return err
				}
				for _, name := range args[1:] {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return nil
			})
		},
	}
}
