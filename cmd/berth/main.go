// berth is the container-runtime layer of a Kubernetes node: see `berth help`.
package main

import (
	"context"
	"os"

	"github.com/berthrun/berth/internal/cli"
)

func main() { os.Exit(cli.Main(context.Background())) }
