// Command unpack-layer is the unpack helper by itself, for tests whose own binary
// is built with cgo and so cannot be one.
package main

import (
	"os"

	"github.com/berthrun/berth/internal/image/helper"
)

func main() { os.Exit(helper.Main(os.Args[1:])) }
