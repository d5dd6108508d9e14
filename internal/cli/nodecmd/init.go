package nodecmd

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/session"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/facts"
)

// newInit writes a first node file.
func newInit() *cobra.Command {
	var at session.Flags
	var force, all bool
	var file string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Print or write a commented node file that describes this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := at.Open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			text, err := facts.Describe(cmd.Context(), s.Host, all)
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
	at.Register(cmd, false)
	cmd.Flags().StringVarP(&file, "file", "f", "-", "file to write; - is standard output")
	cmd.Flags().BoolVar(&all, "all", false, "write every field; those with a default are comments with an example")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite a file")
	return cmd
}

// writeNew writes a file that must not exist, unless forced.
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
		return fmt.Errorf("node file %s: %w; --force overwrites it", file, errs.Exists)
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
