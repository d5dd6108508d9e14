// Package helper is what the process does in which an image store unpacks layers and checks databases. Package program
// starts it.
package helper

import (
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/unpack/child"
)

// Main is the main function of the process. args are its arguments without its name, and those that a program.Program puts
// before them. It returns the exit code.
func Main(args []string) int {
	if len(args) > 0 && args[0] == dbcheck.Arg {
		return dbcheck.Main(args[1:])
	}
	return child.Main(args)
}
