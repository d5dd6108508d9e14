package clustercmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/config"
)

// newSample prints a commented cluster file.
func newSample() *cobra.Command {
	return &cobra.Command{
		Use:   "sample",
		Short: "Print a cluster file with every field as a comment",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Sample())
			return err
		},
	}
}

// newSchema prints the JSON schema of the cluster file.
func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the cluster file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema())
			return err
		},
	}
}

// newReference prints docs/cluster-reference.md.
func newReference() *cobra.Command {
	return &cobra.Command{
		Use:    "reference",
		Short:  "Print the page of every field of the cluster file",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Reference())
			return err
		},
	}
}

// newValidate names every fault of a cluster file, without access to the machine.
func newValidate() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a cluster file of berth or kind, and report every fault (- is standard input)",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, data, err := config.ReadFile(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			c, err := config.Load(file, data, config.Options{})
			if err != nil {
				return err
			}
			for _, w := range c.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: no fault\n", file)
			return nil
		},
	}
}
