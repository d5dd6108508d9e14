// Command berth-init is the program of the children of berth-supervisor, which become inits of containers
// and processes in them: see package child, which begins before main. It is a part of the file
// berth-supervisor (see package program), and imports little, so that its start costs little.
package main

import (
	"fmt"
	"os"

	_ "github.com/berthrun/berth/internal/supervisor/ownstart/child"
)

func main() {
	fmt.Fprintln(os.Stderr, "berth-init: only berth-supervisor starts this program")
	os.Exit(2)
}
