package nodecmd

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/facts"
)

// newInit writes a node file to begin with.
func newInit() *cobra.Command {
	var at places
	var force, all bool
	var file string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Print a commented node file of what this machine is, or write it to a file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := at.open(cmd)
			if err != nil {
				return err
			}
			defer s.close()
			text, err := facts.Describe(cmd.Context(), s.host, all)
			if err != nil {
				return err
			}
			if file == "-" {
				_, err := fmt.Fprint(cmd.OutOrStdout(), text)
				return err
			}
			if err := writeNew(file, text, force); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is written; `berth node plan` shows what it would change.\n", file)
			return nil
		},
	}
	at.register(cmd, false)
	cmd.Flags().StringVarP(&file, "file", "f", "-", "file to write; - is standard output")
	cmd.Flags().BoolVar(&all, "all", false, "write every field, those that are as by default as comments with an example")
	cmd.Flags().BoolVar(&force, "force", false, "write over a file that is there")
	return cmd
}

// writeNew writes a file that must not be there, unless forced.
func writeNew(file, text string, force bool) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("cannot write the node file: %w", err)
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	out, err := os.OpenFile(file, flags, 0o600)
	if os.IsExist(err) {
		return fmt.Errorf("node file %s: %w; --force writes over it", file, errs.Exists)
	}
	if err != nil {
		return fmt.Errorf("cannot write the node file: %w", err)
	}
	defer out.Close()
	if _, err := out.WriteString(text); err != nil {
		return fmt.Errorf("cannot write the node file: %w", err)
	}
	return out.Close()
}
