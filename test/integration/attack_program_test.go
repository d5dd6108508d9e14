//go:build integration

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/test/harness"
)

// attackProgram puts the program of package attack into the directory of a berth and
// returns its path. BERTH_ATTACK names one that is built already, for a machine without
// Go.
func attackProgram(t *testing.T, b *harness.Berth) string {
	t.Helper()
	path := filepath.Join(b.Dir, "attack")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if built := os.Getenv("BERTH_ATTACK"); built != "" {
		data, err := os.ReadFile(built)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/berthrun/berth/test/harness/attack/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the program that attacks: %v\n%s", err, out)
	}
	return path
}
