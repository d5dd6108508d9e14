//go:build berth_init

package program

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"

	"github.com/opencontainers/runc/libcontainer/exeseal"
)

// The Makefile builds it just before.
//
//go:embed berth-init
var program []byte

// Open returns the program of children, as a sealed copy in memory. dir is a directory for the copy where
// the kernel executes none in memory.
func Open(dir string) (*os.File, error) {
	handle, err := exeseal.CloneBinary(bytes.NewReader(program), int64(len(program)), "berth-init", dir)
	if err != nil {
		return nil, fmt.Errorf("cannot copy berth-init: %w", err)
	}
	return handle, nil
}
