package cli

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd"
	"github.com/berthrun/berth/internal/cli/crictl"
	"github.com/berthrun/berth/internal/cli/ctr"
)

// program is a tool that this binary becomes under another name.
type program struct {
	name string
	root func() *cobra.Command
	// failure is the prefix of an error.
	failure string
	// quiet reports whether arguments request silence, even if they are invalid; nil means never.
	quiet func(args []string) bool
}

// programs are the tools that a link to berth, or a copy of it, can stand for.
func programs() []program {
	return []program{
		{"kind", clustercmd.NewKind, "ERROR: ", clustercmd.KindIsQuiet},
		{"crictl", crictl.New, "crictl: ", nil},
		{"ctr", ctr.New, "ctr: ", nil},
	}
}

// called finds the program of a path. A suffix after a dash is ignored, as in kind-linux-amd64.
// Every other name is berth.
func called(path string) program {
	name := filepath.Base(path)
	for _, p := range programs() {
		if name == p.name || strings.HasPrefix(name, p.name+"-") {
			return p
		}
	}
	return program{"berth", Root, "berth: ", nil}
}
