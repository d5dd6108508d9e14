// berth-cni is the CNI plugins that berth runs in process, as a program for others that execute
// plugins. The name that it is called by decides which plugin it is.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/network/cni/plugin/all"
)

func main() { os.Exit(run(context.Background())) }

func run(ctx context.Context) int {
	name := filepath.Base(os.Args[0])
	p := all.ByType(name)
	if p == nil {
		var types []string
		for _, p := range all.Plugins() {
			types = append(types, p.Type)
		}
		fmt.Fprintf(os.Stderr, "%s is not the name of a CNI plugin that this program has; call it by a link with the name of one: %s\n", name, strings.Join(types, ", "))
		return 1
	}
	if os.Getenv("CNI_COMMAND") == "" {
		fmt.Fprintf(os.Stderr, "CNI plugin %s of berth\nCNI protocol versions supported: %s\n", p.Type, strings.Join(p.Versions.SupportedVersions(), ", "))
		return 0
	}
	var config []byte
	if os.Getenv("CNI_COMMAND") != "VERSION" {
		var err error
		if config, err = io.ReadAll(os.Stdin); err != nil {
			fmt.Fprintf(os.Stderr, "cannot read the configuration: %v\n", err)
			return 1
		}
	}
	return p.Main(ctx, config, os.Stdout, os.Stderr)
}
