package imagecmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/image"
)

// Exit codes of fsck, beside 0 for no damage and 1 for a check that failed.
const (
	exitUnchecked = 1
	exitRepaired  = 3
	exitDamaged   = 4
)

func (c *commands) newCheck() *cobra.Command {
	var output show.Flag
	var repair bool
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check the content and the layers of all images",
		Long: "fsck looks at the modes and owners of the store's own files, reads every blob, unpacks every layer again, and\n" +
			"compares all with what they should be. It says what is damaged, and which images and containers that concerns. It\n" +
			"also lists the images that starts of the daemon have lost.\n\n" +
			"With --repair the daemon sets modes and owners again, fetches damaged blobs again, exchanges damaged layers, and\n" +
			"pulls lost images. Blobs come from the archives in image.import_dirs that the images came from, or from the\n" +
			"registries of the images, with the daemon's own credentials. Containers that use a damaged layer keep its files until\n" +
			"they are removed, and new ones get the repaired layer. fsck changes nothing that containers have written. It prints\n" +
			"each damaged object when it finds it, with what was done.\n\n" +
			"The check takes as long as reading and unpacking all images. It shows its progress, and `berth jobs` lists it.\n" +
			"Ctrl-C ends it: what is repaired stays so, and the store is valid. Only berth supports this.\n\n" +
			"The exit code is 0 without damage, 3 if all damage is repaired, 4 if damage is left, and 1 if the check failed or\n" +
			"could not check all, such as on a full disk.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				bar := progress.New(cmd.ErrOrStderr(), "fsck")
				seen := func(d image.Damage) {
					if !output.IsText() {
						return // the report has it
					}
					bar.Clear()
					fmt.Fprint(cmd.OutOrStdout(), damageText(&d))
				}
				report, err := conn.Berth.CheckImages(ctx, repair, bar.Show, seen)
				bar.Clear()
				if err != nil {
					return err
				}
				if err := output.Print(cmd.OutOrStdout(), report, func(w io.Writer) error { return checkSummary(w, report) }); err != nil {
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
	if len(report.Unchecked) > 0 {
		code = exitUnchecked
	}
	for i := range report.Damage {
		if !report.Damage[i].Repaired {
			return exitDamaged
		}
		if code == 0 {
			code = exitRepaired
		}
	}
	return code
}

// damageText says what is wrong with an object, and what was done.
func damageText(d *image.Damage) string {
	state := "damaged"
	if d.Repaired {
		state = "repaired"
	}
	text := fmt.Sprintf("%s: %s %s: %s\n", state, d.Object, d.Name(), d.Problem)
	for _, row := range [][2]string{
		{"images", strings.Join(d.Images, ", ")}, {"containers", strings.Join(d.Containers, ", ")}, {"done", d.Repair}, {"to do", d.Advice},
	} {
		if row[1] != "" {
			text += fmt.Sprintf("  %-11s %s\n", row[0]+":", row[1])
		}
	}
	return text
}

func checkSummary(w io.Writer, report *image.CheckReport) error {
	text, repaired := "", 0
	for _, note := range report.Notes {
		text += "note: " + note + "\n"
	}
	for _, object := range report.Unchecked {
		text += "not checked: " + object + "\n"
	}
	for i := range report.Damage {
		if report.Damage[i].Repaired {
			repaired++
		}
	}
	text += fmt.Sprintf("checked %d blobs and %d layers, %s; %d damaged, %d of them repaired", report.Blobs, report.Layers,
		show.Size(uint64(max(report.Bytes, 0))), len(report.Damage), repaired)
	if n := len(report.Unchecked); n > 0 {
		text += fmt.Sprintf("; %d not checked", n)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
