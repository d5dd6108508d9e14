package native

import (
	"context"

	"github.com/berthrun/berth/internal/engine/podfiles"
)

// prepareLog makes the directory of the container's log.
func (e *Engine) prepareLog(ctx context.Context, c *creation) (err error) {
	if c.LogPath == "" {
		return nil
	}
	c.request.MaxLogLine, c.request.LogRate = e.rules().MaxLogLine, e.rules().LogRate
	c.request.LogDir = c.SandboxSpec.Config.GetLogDirectory()
	c.request.LogPath, err = podfiles.MakeLogDir(ctx, e.probes, c.request.LogDir, c.LogPath)
	return err
}
