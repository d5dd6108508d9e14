// Command berth-unpack is the process in which an image store unpacks layers and checks databases. It imports little: what
// it does not import is not initialised for each layer. berth embeds it: see package program.
package main

import (
	"os"

	"github.com/berthrun/berth/internal/image/helper"
	"github.com/berthrun/berth/internal/image/helper/program"
)

func main() {
	// The kernel names a process after its file, which has no name in memory. Only people read it.
	_ = os.WriteFile("/proc/self/comm", []byte(program.Name), 0)
	os.Exit(helper.Main(os.Args[1:]))
}
