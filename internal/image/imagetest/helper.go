package imagetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berthrun/berth/internal/image/helper/program"
)

// RunWithUnpackHelper is a TestMain for tests that unpack layers: it builds the unpack helper once for all of them, sets
// helper, and returns the exit code of the tests.
func RunWithUnpackHelper(m interface{ Run() int }, helper *program.Command) int {
	dir, err := os.MkdirTemp("", "berth-unpack-layer-")
	if err == nil {
		defer os.RemoveAll(dir)
		*helper, err = UnpackHelper(context.Background(), dir)
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return m.Run()
}

// UnpackHelper builds the unpack helper into dir, for the configuration of a store. It
// must be static, which test binaries often are not (the race detector needs cgo): its root has no loader.
func UnpackHelper(ctx context.Context, dir string) (program.Command, error) {
	path := filepath.Join(dir, program.Name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/berthrun/berth/cmd/berth-unpack")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build the unpack helper: %w: %s", err, out)
	}
	return program.Command{path}, nil
}
