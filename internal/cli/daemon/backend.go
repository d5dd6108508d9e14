package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/berthrun/berth/internal/cli/daemon/jobcalls"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// backend runs containers and holds their images. Only this file and the one of
// each engine know which engine it is.
type backend struct {
	engine engine.Engine
	images imageStore
	// await returns when the images can be used, or the reason why they cannot. Lists of pods do not need them.
	await func(context.Context) error
	// apply applies the keys that can change while the daemon runs.
	apply func(*config.Daemon)
	// jobs are those of the images.
	jobs *jobcalls.Images
	// close leaves the containers running.
	close func() error
}

// imageStore is what CRI, pods and berth's own service need of an image store together.
type imageStore interface {
	image.Store
	image.Catalog
}

// openBackend opens the engine that the configuration names. answering is closed when the daemon answers, nil if
// nobody waits for answers: what they do not need is opened then.
func openBackend(ctx context.Context, cfg *config.Daemon, pulls image.PullObserver, answering <-chan struct{}, log *slog.Logger) (*backend, error) {
	switch cfg.Engine {
	case "native":
		return openNative(ctx, cfg, pulls, answering, log)
	case "docker":
		return openDocker(ctx, cfg, pulls, log)
	default:
		return nil, fmt.Errorf("engine = %q: there is no such engine: %w", cfg.Engine, errs.Invalid)
	}
}
