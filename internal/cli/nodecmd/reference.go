package nodecmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// newReference prints docs/node-reference.md.
func newReference() *cobra.Command {
	return &cobra.Command{
		Use:    "reference",
		Short:  "Print the page of every field of the node file",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), nodefile.Reference())
			return err
		},
	}
}
