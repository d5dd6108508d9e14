package imagetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// UnpackHelper builds the unpack helper into dir and returns the command for
// image.Config.UnpackHelper. The helper must be built without cgo, which test
// binaries often are not (the race detector needs it).
func UnpackHelper(ctx context.Context, dir string) ([]string, error) {
	path := filepath.Join(dir, "unpack-layer")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/berthrun/berth/internal/image/imagetest/unpack-layer")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build the unpack helper: %w: %s", err, out)
	}
	return []string{path}, nil
}
