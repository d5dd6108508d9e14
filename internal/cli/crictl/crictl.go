// Package crictl is the command of a link to berth that is called crictl: a client of any CRI
// socket with the verbs, flags and output of that tool, for users and scripts on a node. It uses
// nothing of berth but CRI.
package crictl

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/containers"
	"github.com/berthrun/berth/internal/cli/crictl/images"
	"github.com/berthrun/berth/internal/cli/crictl/pods"
	"github.com/berthrun/berth/internal/version"
)

// Version is the release of crictl whose flags and output this has.
const Version = "v1.36.0"

// verbs are all of them.
func verbs() []func(*connection.Settings) *cobra.Command {
	return []func(*connection.Settings) *cobra.Command{
		containers.NewPs, containers.NewStats, containers.NewInspect, containers.NewLogs, containers.NewExec,
		containers.NewAttach, containers.NewStart, containers.NewStop, containers.NewRemove, containers.NewEvents,
		pods.NewPods, pods.NewInspectPod, pods.NewStopPod, pods.NewRemovePod, pods.NewStats, pods.NewPortForward,
		images.NewImages, images.NewInspectImage, images.NewPull, images.NewRemoveImage, images.NewImageFsInfo,
		newInfo, newVersion,
	}
}

// New returns the command and all below it. Its flags come before the verb, as crictl's do: many of
// their letters mean something else after it.
func New() *cobra.Command {
	s := &connection.Settings{Getenv: os.Getenv}
	root := &cobra.Command{
		Use:   "crictl",
		Short: "Look at pods, containers and images of a node, and stop or remove them",
		Long: "This is berth " + version.Version + " under the name crictl. It has the verbs of crictl " + Version + " for debugging nodes,\n" +
			"with their flags and output, for the socket of any runtime.",
		Version:          Version,
		TraverseChildren: true,
		Args:             cobra.NoArgs,
		RunE:             func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("crictl version {{.Version}}\n")
	s.Register(root)
	for _, newVerb := range verbs() {
		root.AddCommand(newVerb(s))
	}
	addAbsent(root)
	return root
}
