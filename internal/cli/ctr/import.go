package ctr

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

func newImport(s *settings) *cobra.Command {
	var req berthapi.ImportRequest
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import the images of an archive; - is standard input",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, err := open(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			defer archive.Close()
			return s.use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				images, err := conn.Berth.ImportImage(ctx, req, archive, func(berthapi.Progress) {})
				if err != nil {
					return fmt.Errorf("cannot import %s: %w", args[0], err)
				}
				for _, image := range images {
					for _, name := range append(image.Tags, image.ID)[:max(1, len(image.Tags))] {
						fmt.Fprintf(cmd.OutOrStdout(), "unpacking %s (%s)...done\n", name, image.ID)
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&req.Name, "index-name", "", "name for an image that has none")
	accepted(cmd, "all-platforms", "digests", "no-unpack", "local", "skip-digest-for-named", "discard-unpacked-layers",
		"snapshotter=", "base-name=", "platform=", "label=", "compress-blobs", "sync-fs")
	return cmd
}

// open opens an archive; "-" is standard input, which is sent to the daemon.
func open(in io.Reader, name string) (io.ReadCloser, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("cannot import: %w", err)
		}
		return file, nil
	}
	if file, ok := in.(*os.File); ok {
		if term.IsTerminal(int(file.Fd())) {
			return nil, fmt.Errorf("cannot import from a terminal: name a file, or pipe an archive in: %w", errs.Invalid)
		}
		return file, nil
	}
	return io.NopCloser(in), nil
}
