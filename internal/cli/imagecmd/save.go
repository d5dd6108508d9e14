package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/interrupt"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

func (c *commands) newSave() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "save IMAGE...",
		Aliases: []string{"export"},
		Short:   "Write images to one archive that docker, podman and OCI tools read",
		Long: "save writes one archive that is both a docker archive and an OCI layout. Of an image for several platforms it\n" +
			"contains those that this node has. By a name it has the image for the node's platform; name the image of a handler\n" +
			"with another platform by its id. Only berth supports this.",
		Example:           "  berth image save app:1 web:2 -o images.tar\n  berth image save app:1 | docker load",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				if output == "" || output == "-" {
					return saveTo(ctx, conn, args, cmd.OutOrStdout())
				}
				return interrupt.Run(ctx, func(string) {}, func(ctx context.Context) error { return saveFile(ctx, conn, args, output) })
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write; - or empty: stdout")
	return cmd
}

func saveTo(ctx context.Context, conn *criclient.Conn, refs []string, to io.Writer) error {
	if file, ok := to.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return fmt.Errorf("cannot save to a terminal: name a file with -o, or pipe it somewhere: %w", errs.Invalid)
	}
	if err := conn.Berth.ExportImage(ctx, berthapi.ExportRequest{Refs: refs}, to); err != nil {
		return fmt.Errorf("cannot save: %w", err)
	}
	return nil
}

// saveFile leaves no incomplete archive under the name of a complete one.
func saveFile(ctx context.Context, conn *criclient.Conn, refs []string, name string) error {
	file, err := createOutput(name)
	if err != nil {
		return fmt.Errorf("cannot save: %w", err)
	}
	if err := saveTo(ctx, conn, refs, file.File); err != nil {
		return errors.Join(err, file.Discard())
	}
	if err := file.Commit(); err != nil {
		return fmt.Errorf("cannot save: %w", err)
	}
	return nil
}
