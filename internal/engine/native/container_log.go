package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/engine/probe"
	"github.com/berthrun/berth/internal/errs"
)

// prepareLog makes the directory of the container's log.
func (e *Engine) prepareLog(ctx context.Context, c *creation) error {
	if c.LogPath == "" {
		return nil
	}
	dir := c.SandboxSpec.Config.GetLogDirectory()
	if !filepath.IsAbs(dir) { // the sandbox's record may be of an earlier version, whose requests cri/shape has not seen
		return fmt.Errorf("config.log_directory %q of the sandbox is not an absolute path: %w", dir, errs.Invalid)
	}
	below, err := filepath.Rel(dir, c.LogPath)
	if err != nil {
		return fmt.Errorf("config.log_path: %w: %w", err, errs.Invalid)
	}
	c.request.MaxLogLine, c.request.LogRate = e.rules().MaxLogLine, e.rules().LogRate
	c.request.LogDir, c.request.LogPath = dir, below
	_, err = probe.Ask(ctx, e.probes, "make the log directory "+filepath.Dir(c.LogPath), func() (struct{}, error) {
		return struct{}{}, makeLogDir(dir, filepath.Dir(below))
	})
	if err != nil {
		return fmt.Errorf("cannot make the log directory: %w", err)
	}
	return nil
}

// makeLogDir makes the sandbox's log directory and, beneath it, the one of a
// container's log. A kubelet has made both already; other clients have not.
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
