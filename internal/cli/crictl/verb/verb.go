// Package verb has what the verbs of crictl share.
package verb

import "github.com/spf13/cobra"

// OrHelp calls run if there is an argument, and shows the usage if there is none: `crictl rm
// $(crictl ps -q)` does not fail if nothing runs.
func OrHelp(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return run(cmd, args)
	}
}

// ErrorOrHelp shows the usage of a verb without arguments.
func ErrorOrHelp(cmd *cobra.Command, err error) error {
	if err != nil {
		return err
	}
	return cmd.Help()
}
