// Package debugcmd holds `berth debug`: what helps to find a fault of berth itself.
package debugcmd

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/connect"
)

// New returns `berth debug`.
func New() *cobra.Command {
	var endpoint connect.Flag
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Collect what helps to find a fault of berth",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	endpoint.Register(cmd)
	cmd.AddCommand(newBundle(&endpoint), newProfile(&endpoint))
	return cmd
}
