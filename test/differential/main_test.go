//go:build integration

package differential

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// built is the directory of the programs that TestMain has built.
var built string

// TestMain builds the program that runs in the containers, and the supervisor where `make` has not.
// BERTH_PROBE names a program that is built already, for a machine without a C compiler.
func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "berth-diff-bin-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	if os.Getenv("BERTH_PROBE") == "" {
		compile := exec.Command("gcc", "-static", "-O1", "-Wall", "-Wno-parentheses", "-s", "-o", probeProgram(), "testdata/probe.c")
		if out, err := compile.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "cannot build the program that looks at containers from inside: %v\n%s", err, out)
			return 1
		}
	}
	if os.Getenv("BERTH_BIN") == "" {
		build := exec.Command("go", "build", "-tags", "seccomp netgo osusergo runc_nocriu",
			"-ldflags", "-linkmode external -extldflags -static", "-o", supervisorProgram(), "github.com/berthrun/berth/cmd/berth-supervisor")
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "cannot build the supervisor: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

func probeProgram() string {
	if given := os.Getenv("BERTH_PROBE"); given != "" {
		return given
	}
	return filepath.Join(built, "probe")
}

func supervisorProgram() string {
	if bin := os.Getenv("BERTH_BIN"); bin != "" {
		return filepath.Join(bin, "berth-supervisor")
	}
	return filepath.Join(built, "berth-supervisor")
}
