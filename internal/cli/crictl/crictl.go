// Package crictl is what berth is where it is called crictl: a client of any CRI socket with the
// verbs, flags and output of the tool of that name, for people and scripts on a node. It knows
// nothing of berth but its CRI.
package crictl

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/version"
)

// Version is the release of crictl whose flags and output this has.
const Version = "v1.36.0"

// verb makes one command. A file each has them.
type verb func(*settings) *cobra.Command

// verbs are all of them.
func verbs() []verb {
	return []verb{
		newAttach, newExec, newImageFsInfo, newImages, newInfo, newInspect, newInspectImage, newInspectPod,
		newLogs, newPods, newPs, newPull, newRemove, newRemoveImage, newRemovePod, newStart, newStats,
		newStop, newStopPod, newVersion,
	}
}

// New returns the command and all below it. Its flags stand before the verb, as crictl's do: many
// of their letters mean something else behind it.
func New() *cobra.Command {
	s := &settings{getenv: os.Getenv}
	root := &cobra.Command{
		Use:   "crictl",
		Short: "Look at pods, containers and images of a node, and stop or remove them",
		Long: "This is berth " + version.Version + " under the name crictl. It has the verbs of crictl " + Version + " that are typed on nodes,\n" +
			"with their flags and output, for the socket of any runtime.",
		Version:          Version,
		TraverseChildren: true,
		Args:             cobra.NoArgs,
		RunE:             func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("crictl version {{.Version}}\n")
	s.register(root)
	for _, newVerb := range verbs() {
		root.AddCommand(newVerb(s))
	}
	return root
}

// orHelp calls run when there is an argument, and shows how the verb is called when there is none:
// `crictl rm $(crictl ps -q)` is no failure where nothing runs.
func orHelp(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return run(cmd, args)
	}
}

// programDir is where this program lies, under the name that it was called by.
func programDir() string {
	if !strings.Contains(os.Args[0], "/") {
		return ""
	}
	return filepath.Dir(os.Args[0])
}
