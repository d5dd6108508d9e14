package podfiles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
)

// MakeLogDir makes a sandbox's log directory and, beneath it, the directory of the log at path.
// It returns path relative to the sandbox's directory. A kubelet has made both directories
// already; other clients have not.
func MakeLogDir(ctx context.Context, probes *probe.Pool, dir, path string) (string, error) {
	if !filepath.IsAbs(dir) { // the sandbox's record may be of an earlier version, whose requests cri/shape has not seen
		return "", fmt.Errorf("config.log_directory %q of the sandbox is not an absolute path: %w", dir, errs.Invalid)
	}
	below, err := filepath.Rel(dir, path)
	if err != nil {
		return "", fmt.Errorf("config.log_path: %w: %w", err, errs.Invalid)
	}
	_, err = probe.Ask(ctx, probes, "make the log directory "+filepath.Dir(path), func() (struct{}, error) {
		return struct{}{}, makeLogDir(dir, filepath.Dir(below))
	})
	if err != nil {
		return "", fmt.Errorf("cannot make the log directory: %w", err)
	}
	return below, nil
}

func makeLogDir(dir, below string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // links that lead out of it are not followed
	if err != nil {
		return err
	}
	defer root.Close()
	err = root.MkdirAll(below, 0o755)
	var errno syscall.Errno
	if err != nil && (!errors.As(err, &errno) || errno == syscall.ENOTDIR || errno == syscall.ELOOP || errno == syscall.ENAMETOOLONG) {
		// An error without an errno is os.Root's: the path leads out.
		err = fmt.Errorf("config.log_path: %w: %w", err, errs.Invalid)
	}
	return err
}
