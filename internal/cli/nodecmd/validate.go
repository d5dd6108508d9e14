package nodecmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/source"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// newValidate names every fault of a node file, without access to the machine.
func newValidate() *cobra.Command {
	return &cobra.Command{
		Use:     "validate [FILE]",
		Aliases: []string{"check"},
		Short:   "Check a node file, and report every fault (- is standard input; default " + nodefile.DefaultFile + ")",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := nodefile.DefaultFile
			if len(args) == 1 {
				file = args[0]
			}
			if _, _, err := source.Load(cmd.Context(), file, "", cmd.InOrStdin()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: no fault\n", source.Shown(file))
			return nil
		},
	}
}
