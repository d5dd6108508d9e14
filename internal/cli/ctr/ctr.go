// Package ctr is the command of a link to berth that is called ctr: the part of containerd's tool
// with which scripts load images into nodes. It works on the images of berth.
package ctr

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/version"
)

// namespace is containerd's namespace for images of pods, the only one here.
const namespace = "k8s.io"

// settings are the flags before the verb.
type settings struct{ namespace, address string }

// verbs are the subcommands of `images`, one per file.
func verbs() []func(*settings) *cobra.Command {
	return []func(*settings) *cobra.Command{newImport, newList, newPull, newRemove, newTag}
}

// New returns the command and all below it.
func New() *cobra.Command {
	s := &settings{}
	root := &cobra.Command{
		Use:   "ctr",
		Short: "Put images into berth with the commands of containerd's ctr",
		Long: "This is berth " + version.Version + " under the name ctr. It has `ctr --namespace=" + namespace + " images`, with which scripts load images\n" +
			"into nodes. `berth image` has more.",
		TraverseChildren: true,
		Args:             cobra.NoArgs,
		RunE:             func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.Flags()
	flags.StringVarP(&s.namespace, "namespace", "n", "", "must be "+namespace+" (default: $CONTAINERD_NAMESPACE)")
	flags.StringVarP(&s.address, "address", "a", "", "socket of berth (default: $BERTH_ENDPOINT, "+criclient.DefaultEndpoint+")")
	accepted(root, "debug", "timeout=", "connect-timeout=")
	images := &cobra.Command{
		Use:     "images",
		Aliases: []string{"image", "i"},
		Short:   "Import, list, name, pull and remove images",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, newVerb := range verbs() {
		images.AddCommand(newVerb(s))
	}
	root.AddCommand(images)
	return root
}

// accepted are flags of ctr's without effect here: berth unpacks images for the platform of the
// node. One with = has a value.
func accepted(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if name[len(name)-1] == '=' {
			name = name[:len(name)-1]
			cmd.Flags().String(name, "", "accepted for compatibility, without effect")
		} else {
			cmd.Flags().Bool(name, false, "accepted for compatibility, without effect")
		}
		cmd.Flags().Lookup(name).Hidden = true
	}
}

// use runs a verb with a connection.
func (s *settings) use(cmd *cobra.Command, do func(context.Context, *criclient.Conn) error) error {
	if named := cmp.Or(s.namespace, os.Getenv("CONTAINERD_NAMESPACE"), "default"); named != namespace {
		return fmt.Errorf("the namespace is %s, and images of pods are in %s: call ctr --namespace=%s: %w", named, namespace, namespace, errs.Unsupported)
	}
	conn, err := criclient.Dial(cmd.Context(), cmp.Or(s.address, os.Getenv("BERTH_ENDPOINT"), criclient.DefaultEndpoint))
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(cmd.Context(), conn)
}
