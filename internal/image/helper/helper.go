// Package helper is the process in which an image store unpacks layers and checks databases.
package helper

import (
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/unpack"
)

// Own is the command of a program that is its own helper; see Main.
func Own() []string { return []string{"/proc/self/exe", "unpack-layer"} }

// Main is the main function of the helper. A program that opens a store calls it as early as
// it can, when it finds itself started by the store's UnpackHelper:
//
//	if len(os.Args) > 1 && os.Args[1] == "unpack-layer" {
//		os.Exit(helper.Main(os.Args[2:]))
//	}
//
// with Own. The program must be built without cgo, since Go can take capabilities from all
// threads only then.
func Main(args []string) int {
	if len(args) > 0 && args[0] == dbcheck.Arg {
		return dbcheck.Main(args[1:])
	}
	return unpack.Main(args)
}
