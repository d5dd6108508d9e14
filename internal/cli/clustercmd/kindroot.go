package clustercmd

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/version"
)

// kindName is what berth is called where it is kind.
const kindName = "kind"

// NewKind returns the command that berth is where it is called kind: kind's commands and flags,
// and nothing else.
func NewKind() *cobra.Command {
	root := &cobra.Command{
		Use:   kindName,
		Short: "Clusters of Kubernetes on one machine, by kind's commands",
		Long: "This is berth " + version.Version + " under the name kind. It has the commands and flags of kind v" + kindVersion + ", and writes\n" +
			"to standard output what kind writes. `berth cluster` has more.",
		Version: kindVersion,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	addKindFlags(root)
	root.AddCommand(
		group("create", "Make a cluster", newCreateOfKind()),
		group("delete", "Remove clusters", newDeleteOfKind()...),
		newGet(), newExport(),
		group("load", "Put images into nodes", newLoadOfKind()...),
		newBuild(), newKindVersion(),
	)
	for _, c := range root.Commands() {
		c.Hidden = false
		if c.HasSubCommands() {
			c.RunE = wantsMore
		}
		for _, of := range c.Commands() {
			of.Example = "" // those of ours
		}
	}
	return root
}

// wantsMore is a word of kind's that says nothing alone: it shows what there is, and fails.
func wantsMore(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil {
		return err
	}
	return errors.New("Subcommand is required")
}

// KindIsQuiet reports whether the arguments of kind have -q, even where other arguments are wrong.
func KindIsQuiet(args []string) bool {
	cmd := &cobra.Command{FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}}
	quiet := cmd.Flags().BoolP("quiet", "q", false, "")
	cmd.Flags().BoolP("help", "h", false, "") // it would be shown here
	_ = cmd.ParseFlags(args)                  // who reads all flags says what is wrong
	return *quiet
}

// addKindFlags gives a command those flags that kind has before and behind each command. Most
// commands have flags of their own of these names; both are the same to who types them.
func addKindFlags(cmd *cobra.Command) {
	cmd.PersistentFlags().BoolP("quiet", "q", false, "write nothing to standard error")
	cmd.PersistentFlags().IntP("verbosity", "v", 0, "1 or more: show the calls of the container engine")
}

// ofKind makes a command one of kind's: -q silences standard error, errors included.
func ofKind(cmd *cobra.Command) *cobra.Command {
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if quiet, err := cmd.Flags().GetBool("quiet"); err == nil && quiet {
			cmd.SetErr(io.Discard)
		}
	}
	return cmd
}
