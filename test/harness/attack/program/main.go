// The attack program that tests run in a container. It is static and needs nothing of the
// container's image.
package main

import (
	"os"

	"github.com/berthrun/berth/test/harness/attack"
)

func main() { os.Exit(attack.Main(os.Args)) }
