package nodecmd

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// newSchema prints the JSON schema of the node file.
func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the node file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(nodefile.Schema())
			return err
		},
	}
}
