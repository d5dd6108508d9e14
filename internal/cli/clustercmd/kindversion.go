package clustercmd

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/version"
)

// kindVersion is the release of kind whose commands, flags and files are understood. Scripts
// compare it with the lowest version that they need.
const kindVersion = "0.33.0"

// newKindVersion prints that version in kind's form to standard output, and berth's own to standard
// error, where scripts do not read it. With -q it prints the number only.
func newKindVersion() *cobra.Command {
	var format show.Flag
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of kind that this stands for, and that of berth",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			quiet, err := cmd.Flags().GetBool("quiet")
			if err != nil {
				return err
			}
			versions := map[string]string{
				"kind": "v" + kindVersion, "berth": version.Version, "commit": version.Commit,
				"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
			}
			return format.Print(cmd.OutOrStdout(), versions, func(w io.Writer) error {
				if quiet {
					_, err := fmt.Fprintln(w, kindVersion)
					return err
				}
				_, err := fmt.Fprintf(w, "kind v%s %s %s\n", kindVersion, versions["go"], versions["platform"])
				fmt.Fprintf(cmd.ErrOrStderr(), "berth %s\n", version.String())
				return err
			})
		},
	}
	format.Register(cmd)
	return session.AsKind(cmd)
}
