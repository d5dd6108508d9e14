package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/errs"
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

// newValidate names every fault of a node file, without a look at the machine.
func newValidate() *cobra.Command {
	return &cobra.Command{
		Use:     "validate [FILE]",
		Aliases: []string{"check"},
		Short:   "Name every fault of a node file (- is standard input; default " + DefaultFile + ")",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := DefaultFile
			if len(args) == 1 {
				file = args[0]
			}
			if _, _, err := load(cmd.Context(), file, "", cmd.InOrStdin()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: no fault\n", shownFile(file))
			return nil
		},
	}
}

// load reads and checks a node file; "-" is stdin, https://… a server's. It returns the text,
// too. sum is the digest that the user gives, as hexadecimal digits, or empty.
func load(ctx context.Context, file, sum string, stdin io.Reader) (*nodefile.Node, []byte, error) {
	want, err := wantedSum(file, sum)
	if err != nil {
		return nil, nil, err
	}
	var data []byte
	switch {
	case file == "-":
		file = "stdin"
		data, err = io.ReadAll(io.LimitReader(stdin, maxFile+1))
	case remote(file):
		data, err = fetch(ctx, nil, file)
		if err != nil {
			return nil, nil, err
		}
		file = shownFile(file)
	default:
		data, err = os.ReadFile(file)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, fmt.Errorf("node file %s: %w; `berth node init` writes one", file, errs.NotFound)
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read node file: %w", err)
	case len(data) > maxFile:
		return nil, nil, fmt.Errorf("node file %s has more than %d bytes: %w", file, maxFile, errs.Invalid)
	}
	if err := checkSum(file, data, want); err != nil {
		return nil, nil, err
	}
	n, err := nodefile.Load(file, data)
	return n, data, err
}

// maxFile bounds a node file.
const maxFile = 4 << 20
