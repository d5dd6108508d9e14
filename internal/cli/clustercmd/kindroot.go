package clustercmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/images"
	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/version"
)

// NewKind returns the command of a link to berth that is called kind: kind's commands and flags,
// and nothing else.
func NewKind() *cobra.Command {
	root := &cobra.Command{
		Use:   session.KindName,
		Short: "Create and manage Kubernetes clusters on this machine, with kind's commands",
		Long: "This is berth " + version.Version + " under the name kind. It has the commands and flags of kind v" + kindVersion + ", and writes\n" +
			"to standard output what kind writes. `berth cluster` has more.",
		Version: kindVersion,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	session.AddKindFlags(root)
	root.AddCommand(
		session.Group("create", "Create a cluster", newCreateOfKind()),
		session.Group("delete", "Delete clusters", newDeleteOfKind()...),
		newGet(), newExport(),
		session.Group("load", "Load images into nodes", images.NewLoadOfKind()...),
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

// wantsMore is a command of kind that needs a subcommand: it shows its help and fails.
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
	cmd.Flags().BoolP("help", "h", false, "") // help would show it here
	_ = cmd.ParseFlags(args)                  // the parser of all flags reports the error
	return *quiet
}
