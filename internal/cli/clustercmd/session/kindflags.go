package session

import (
	"io"

	"github.com/spf13/cobra"
)

// KindName is the name of the program where berth stands for kind.
const KindName = "kind"

// Group returns a command that only has subcommands.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Hidden: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// AddKindFlags adds the flags that kind accepts before and after each command. Most commands have
// their own flags of these names, with the same meaning.
func AddKindFlags(cmd *cobra.Command) {
	cmd.PersistentFlags().BoolP("quiet", "q", false, "write nothing to standard error")
	cmd.PersistentFlags().IntP("verbosity", "v", 0, "1 or more: show the calls of the container engine")
}

// AsKind makes a command behave as kind's: -q silences standard error, errors included.
func AsKind(cmd *cobra.Command) *cobra.Command {
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if quiet, err := cmd.Flags().GetBool("quiet"); err == nil && quiet {
			cmd.SetErr(io.Discard)
		}
	}
	return cmd
}
