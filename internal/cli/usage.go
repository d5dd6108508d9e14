package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// addUsageToErrors adds the usage to errors of arguments, in a command and all below it.
func addUsageToErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return addUsage(cmd, args, err)
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		addUsageToErrors(c)
	}
}

// addUsage adds the usage, or a suggestion, to an error of arguments.
func addUsage(cmd *cobra.Command, args []string, err error) error {
	if !cmd.HasAvailableSubCommands() || len(args) == 0 {
		if none := cobra.NoArgs(cmd, args); none != nil && none.Error() == err.Error() {
			err = fmt.Errorf("unexpected argument %q", args[0]) // no word of it is a command
		}
		return fmt.Errorf("%w\n  usage: %s", err, cmd.UseLine())
	}
	const near = 2 // letters
	cmd.SuggestionsMinimumDistance = near
	hint := "see " + cmd.CommandPath() + " --help"
	for _, c := range cmd.Root().Commands() {
		if c.Name() == args[0] {
			hint = "did you mean " + c.CommandPath() + "?"
		}
	}
	if all := cmd.SuggestionsFor(args[0]); len(all) > 0 {
		hint = "did you mean " + strings.Join(all, " or ") + "?"
	}
	return fmt.Errorf("%w\n  %s", err, hint)
}

// addFlagHelp adds the way to the help to an error of flags.
func addFlagHelp(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w\n  see %s --help", err, cmd.CommandPath())
}
