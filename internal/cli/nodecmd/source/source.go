// Package source reads node files: from a path, from standard input, or from a server by its
// digest.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// Load reads and checks a node file; "-" is stdin, https://… a server's. It returns the text,
// too. sum is the digest that the user gives, as hexadecimal digits, or empty.
func Load(ctx context.Context, file, sum string, stdin io.Reader) (*nodefile.Node, []byte, error) {
	want, err := wantedSum(file, sum)
	if err != nil {
		return nil, nil, err
	}
	var data []byte
	switch {
	case file == "-":
		file = "stdin"
		data, err = io.ReadAll(io.LimitReader(stdin, nodefile.MaxSize+1))
	case IsRemote(file):
		data, err = fetch(ctx, nil, file)
		if err != nil {
			return nil, nil, err
		}
		file = Shown(file)
	default:
		data, err = os.ReadFile(file)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, fmt.Errorf("node file %s: %w; `berth node init` writes one", file, errs.NotFound)
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read node file: %w", err)
	case len(data) > nodefile.MaxSize:
		return nil, nil, fmt.Errorf("node file %s has more than %d bytes: %w", file, nodefile.MaxSize, errs.Invalid)
	}
	if err := checkSum(file, data, want); err != nil {
		return nil, nil, err
	}
	n, err := nodefile.Load(file, data)
	return n, data, err
}
