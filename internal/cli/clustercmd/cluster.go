// Package clustercmd is `berth cluster`: clusters of several nodes on one machine.
package clustercmd

import (
	"slices"

	"github.com/berthrun/berth/internal/cli/clustercmd/images"
	"github.com/berthrun/berth/internal/cli/clustercmd/inside"
	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/spf13/cobra"
)

// New returns the command and all below it.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Create and manage Kubernetes clusters on this machine",
		Long: "A file describes a cluster, in berth's own format or in kind's (kind.x-k8s.io/v1alpha4).\n\n" +
			"berth cluster also accepts kind's commands: create cluster, delete cluster|clusters, get clusters|nodes|kubeconfig,\n" +
			"export kubeconfig|logs, load docker-image|image-archive, build node-image.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	session.AddKindFlags(cmd)
	for _, flag := range []string{"quiet", "verbosity"} {
		cmd.PersistentFlags().Lookup(flag).Hidden = true
	}
	cmd.AddCommand(newCreate(), newApply(), newDelete(), newList(), newNodes(), newNode(), newKubeconfig(), images.NewLoad(), newLogs())
	cmd.AddCommand(newPower()...)
	cmd.AddCommand(images.NewBuild(), images.NewRegistry(), newDoctor(), inside.NewInNode(), inside.NewInHost(), newValidate(), newSample(), newSchema(), newReference())
	cmd.AddCommand(newGet(), newExport(), newBuild(), newVersion())
	for _, c := range cmd.Commands() {
		for _, of := range c.Commands() {
			if slices.Contains([]string{"create", "delete", "load"}, c.Name()) {
				of.Hidden = true // they are kind's
			}
		}
	}
	return cmd
}
