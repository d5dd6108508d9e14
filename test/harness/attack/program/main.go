// The program that tests run in a container to attack from there. It is static and
// needs nothing of the container's image.
package main

import (
	"os"

	"github.com/berthrun/berth/test/harness/attack"
)

func main() { os.Exit(attack.Main(os.Args)) }
