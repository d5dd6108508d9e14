// Command berth-unpack is the process in which an image store unpacks layers and checks databases. It imports little: what
// it does not import is not initialised for each layer. berth embeds it: see package program.
package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/helper"
	"github.com/berthrun/berth/internal/image/helper/program"
)

func main() {
	setName(program.Name)
	os.Exit(helper.Main(os.Args[1:]))
}

// setName names the calling thread, which is the first one, after the program: its file has no name in memory. Only people read it.
func setName(name string) {
	if text, err := unix.BytePtrFromString(name); err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0)
	}
}
