//go:build berth_init

package program

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"

	"github.com/opencontainers/runc/libcontainer/exeseal"

	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
)

// The Makefile builds them just before: berth-init without cgo, berth-enter with it.
var (
	//go:embed berth-init
	plain []byte
	//go:embed berth-enter
	entering []byte
)

// Open returns the program of children, as sealed copies in memory. dir is a directory for copies where
// the kernel executes none in memory.
func Open(dir string) (exes fork.Executables, err error) {
	if exes.Plain, err = seal(plain, "berth-init", dir); err == nil {
		exes.Entering, err = seal(entering, "berth-enter", dir)
	}
	return exes, err
}

func seal(program []byte, name, dir string) (*os.File, error) {
	handle, err := exeseal.CloneBinary(bytes.NewReader(program), int64(len(program)), name, dir)
	if err != nil {
		return nil, fmt.Errorf("cannot copy %s: %w", name, err)
	}
	return handle, nil
}
