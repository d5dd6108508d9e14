package imagecmd

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/local"
)

func newPreload() *cobra.Command {
	var platforms []string
	cmd := &cobra.Command{
		Use:   "preload DIR ARCHIVE...",
		Short: "Make a directory of images that daemons use in place",
		Long: "preload unpacks docker or OCI archives into DIR, which must not exist. A daemon whose image.preloaded_dirs contain\n" +
			"the directory (default: /usr/share/berth/preloaded) has the images from its next start on. It pins them, and does\n" +
			"not copy them: put DIR into the image that machines are installed from. DIR is an OCI layout with the unpacked\n" +
			"layers beside it; keep owners, links, devices and extended attributes when you copy it. The command needs root, and\n" +
			"no daemon.",
		Example: "  berth image preload rootfs/usr/share/berth/preloaded pause.tar coredns.tar",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelError}))
			others, err := otherPlatforms(platforms)
			if err != nil {
				return err
			}
			made, err := local.MakePreloaded(cmd.Context(), args[0], args[1:], others, program.Own(), log)
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
	cmd.Flags().StringSliceVar(&platforms, "platform", nil, "also images for this platform of a handler (handlers.NAME.platform), such as wasi/wasm")
	return cmd
}

// otherPlatforms returns the short forms of the platforms in texts, without the host's.
func otherPlatforms(texts []string) ([]string, error) {
	var others []string
	for _, text := range texts {
		platform, err := image.ParsePlatform(text)
		if err != nil {
			return nil, err
		}
		if platform != "" {
			others = append(others, platform)
		}
	}
	return others, nil
}
