// Package imagecmd holds `berth image` and its subcommands. All but import, preload, save, bundle,
// tag, layers, explain, du and fsck work against any CRI runtime; pull shows its progress where the runtime is berth.
package imagecmd

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/connect"
)

// completionTime bounds the time of a completion.
const completionTime = 2 * time.Second

type commands struct{ endpoint connect.Flag }

// New returns `berth image`.
func New() *cobra.Command {
	var c commands
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Import, save, bundle, pull, explain, check, list, remove and prune images",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.endpoint.Register(cmd)
	cmd.AddCommand(c.newImport(), newPreload(), c.newSave(), c.newBundle(), c.newPull(), c.newList(), c.newRemove(), c.newPrune(), c.newInspect(), c.newTag(), c.newLayers(), c.newExplain(), c.newDiskUse(), c.newCheck())
	return cmd
}

// complete offers the names of images.
func (c *commands) complete(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	conn, err := c.endpoint.Dial(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.Close()
	resp, err := conn.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, img := range resp.Images {
		names = append(names, img.RepoTags...)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
