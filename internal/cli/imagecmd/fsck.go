package imagecmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/image"
)

// Exit codes of fsck, beside 0 for no damage and 1 for a check that failed.
const (
	exitRepaired = 3
	exitDamaged  = 4
)

func (c *commands) newCheck() *cobra.Command {
	var output show.Flag
	var repair bool
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check the content and the layers of all images",
		Long: "fsck reads every blob and unpacks every layer again, and compares both with what they should be. It says what is\n" +
			"damaged, and which images and containers that concerns. With --repair the daemon fetches damaged blobs again from the\n" +
			"registries of their images, with its own credentials, and exchanges damaged layers. It changes no layer that a\n" +
			"container uses. The check takes as long as reading and unpacking all images. Only berth supports this.\n\n" +
			"The exit code is 0 without damage, 3 if all damage is repaired, 4 if damage is left, and 1 if the check failed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				report, err := conn.Berth.CheckImages(ctx, repair)
				if err != nil {
					return err
				}
				if err := output.Print(cmd.OutOrStdout(), report, func(w io.Writer) error { return checkReport(w, report) }); err != nil {
					return err
				}
				return exitcode.Of(checkCode(report))
			})
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "repair what can be repaired")
	output.Register(cmd)
	return cmd
}

func checkCode(report *image.CheckReport) int {
	code := 0
	for i := range report.Damage {
		if !report.Damage[i].Repaired {
			return exitDamaged
		}
		code = exitRepaired
	}
	return code
}

func checkReport(w io.Writer, report *image.CheckReport) error {
	text := ""
	for i := range report.Damage {
		d := &report.Damage[i]
		state := "damaged"
		if d.Repaired {
			state = "repaired"
		}
		text += fmt.Sprintf("%s: %s %s: %s\n", state, d.Object, d.Digest, d.Problem)
		for _, row := range [][2]string{{"images", strings.Join(d.Images, ", ")}, {"containers", strings.Join(d.Containers, ", ")}, {"to do", d.Advice}} {
			if row[1] != "" {
				text += fmt.Sprintf("  %-11s %s\n", row[0]+":", row[1])
			}
		}
	}
	for _, note := range report.Notes {
		text += "note: " + note + "\n"
	}
	_, err := fmt.Fprintf(w, "%schecked %d blobs and %d layers, %s; %d damaged\n", text, report.Blobs, report.Layers, show.Size(uint64(max(report.Bytes, 0))), len(report.Damage))
	return err
}
