package imagecmd

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/image/helper"
	"github.com/berthrun/berth/internal/image/local"
)

func newPreload() *cobra.Command {
	return &cobra.Command{
		Use:   "preload DIR ARCHIVE...",
		Short: "Make a directory of images that daemons use where it lies",
		Long: "Unpacks docker or OCI archives into DIR, which must not be there yet. A daemon whose image.preloaded_dirs name\n" +
			"the directory (/usr/share/berth/preloaded, if nothing else is said) has its images from its next start on,\n" +
			"pinned, and copies nothing of them: they belong into what a machine is installed from. DIR is an OCI layout\n" +
			"with unpacked layers beside; keep owners, links, devices and extended attributes when you copy it.\n" +
			"It takes root, and no daemon.",
		Example: "  berth image preload rootfs/usr/share/berth/preloaded pause.tar coredns.tar",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelError}))
			made, err := local.MakePreloaded(cmd.Context(), args[0], args[1:], helper.Own(), log)
			if err != nil {
				return fmt.Errorf("cannot make %s: %w", args[0], err)
			}
			var list []berthapi.Image
			for _, img := range made {
				list = append(list, berthapi.Image{ID: img.ID, Tags: img.Tags, Size: img.Size})
			}
			report(cmd.OutOrStdout(), list)
			return nil
		},
	}
}
