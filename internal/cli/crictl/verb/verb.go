// Package verb has what the verbs of crictl share.
package verb

import "github.com/spf13/cobra"

// OrHelp calls run when there is an argument, and shows how the verb is called when there is none:
// `crictl rm $(crictl ps -q)` is no failure where nothing runs.
func OrHelp(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return run(cmd, args)
	}
}

// ErrorOrHelp shows how a verb is called that has nothing to do.
func ErrorOrHelp(cmd *cobra.Command, err error) error {
	if err != nil {
		return err
	}
	return cmd.Help()
}
