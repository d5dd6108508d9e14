// Package helper is what the process does in which an image store unpacks layers and checks databases. Package program
// starts it.
package helper

import (
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/unpack"
)

// Main is the main function of the process. args are its arguments without its name, and those that a program.Program puts
// before them. It returns the exit code. The program must be built without cgo, since Go can take capabilities from all
// threads only then.
func Main(args []string) int {
	if len(args) > 0 && args[0] == dbcheck.Arg {
		return dbcheck.Main(args[1:])
	}
	return unpack.Main(args)
}
