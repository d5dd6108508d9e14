package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

func (c *commands) newImport() *cobra.Command {
	var req berthapi.ImportRequest
	cmd := &cobra.Command{
		Use:   "import [FILE...]",
		Short: "Import docker or OCI archives (- or nothing: stdin)",
		Long: "import imports docker and OCI archives, plain or compressed with gzip or zstd. The daemon opens no path: it reads\n" +
			"the file that this command has open. Where it cannot do so, the command sends the content: from standard input, and\n" +
			"from any file if the daemon's PID namespace does not contain this command. Only berth supports this.",
		Example: "  berth image import hello.tar\n  docker save app:1 | berth image import",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"-"}
			}
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				var failed []error
				for _, name := range args {
					failed = append(failed, importFile(ctx, cmd, conn, name, req))
				}
				return errors.Join(failed...)
			})
		},
	}
	cmd.Flags().StringVar(&req.Name, "name", "", "name for an image that has none")
	cmd.Flags().BoolVar(&req.Pin, "pin", false, "protect the image from the kubelet's garbage collection")
	return cmd
}

func importFile(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, name string, req berthapi.ImportRequest) error {
	archive, what := cmd.InOrStdin(), "stdin"
	if name == "-" {
		if file, ok := archive.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			return fmt.Errorf("cannot import from a terminal: name a file, or pipe an archive in: %w", errs.Invalid)
		}
	} else {
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("cannot import: %w", err)
		}
		defer file.Close()
		archive, what = file, name
	}
	bar := progress.New(cmd.ErrOrStderr(), what)
	images, err := conn.Berth.ImportImage(ctx, req, archive, bar.Show)
	bar.Clear()
	if err != nil {
		return fmt.Errorf("cannot import %s: %w", what, err)
	}
	report(cmd.OutOrStdout(), images)
	return nil
}

func report(w io.Writer, images []berthapi.Image) {
	for _, img := range images {
		names := strings.Join(img.Tags, " ")
		if names == "" {
			names = "(no name)"
		}
		fmt.Fprintf(w, "%s  %s  %s\n", show.ID(img.ID), names, show.Size(uint64(max(img.Size, 0))))
	}
}
