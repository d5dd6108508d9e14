package imagecmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/image"
)

func (c *commands) newDiskUse() *cobra.Command {
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "du",
		Short: "Show what images take on disk, and who uses them",
		Long: "du shows the compressed content and the unpacked layers of each image, how much of both no other image has (OWN:\n" +
			"what its removal frees), and how many containers use it. A row (removed) shows layers that only containers still use:\n" +
			"those of a removed image, or of a damaged layer that a repair has replaced. The row names these containers. Only berth\n" +
			"supports this.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				use, err := conn.Berth.DiskUse(ctx)
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), use, func(w io.Writer) error { return diskUse(w, use) })
			})
		},
	}
	output.Register(cmd)
	return cmd
}

func diskUse(w io.Writer, use *image.DiskUse) error {
	size := func(n int64) string { return show.Size(uint64(max(n, 0))) }
	images := slices.Clone(use.Images)
	slices.SortStableFunc(images, func(a, b image.ImageUse) int { return cmp.Compare(b.Own, a.Own) })
	var rows [][]string
	for i := range images {
		u := &images[i]
		rows = append(rows, []string{
			show.Or(strings.Join(u.Names, " ")), show.ID(u.ID), size(u.Content), size(u.Layers), size(u.Own), size(u.Shared), fmt.Sprint(len(u.Containers)),
		})
	}
	for _, u := range use.Kept {
		// An image names itself; of a removed one only its containers are left to look at.
		users := make([]string, len(u.Containers))
		for i, key := range u.Containers {
			users[i] = show.ID(key)
		}
		rows = append(rows, []string{
			"(removed)", show.ID(u.Chain), size(0), size(u.Bytes), size(u.Bytes), size(0), fmt.Sprintf("%d: %s", len(users), strings.Join(users, " ")),
		})
	}
	if err := show.Table(w, []string{"IMAGE", "ID", "CONTENT", "LAYERS", "OWN", "SHARED", "CONTAINERS"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nunfinished downloads: %s\ntotal: %s\n", size(use.Unfinished), size(use.Total))
	return err
}
