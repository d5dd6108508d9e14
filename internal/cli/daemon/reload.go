package daemon

import (
	"context"
	"os"
	"time"

	"github.com/berthrun/berth/internal/cli/configcheck"
	"github.com/berthrun/berth/internal/cli/daemon/daemonlog"
	"github.com/berthrun/berth/internal/config"
)

// reloadOnHangup reads the configuration again on SIGHUP, also on one from before its
// call. A bad file changes
// nothing, and so does one that names files which cannot be used: the node runs on
// with what works. A start does not check these files, since a node does without its
// metrics rather than without its pods. A key that cannot change while the daemon
// runs is refused by name.
func reloadOnHangup(ctx context.Context, hangups <-chan os.Signal, file string, load Load, p *parts, log *daemonlog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		next, err := load(configcheck.Files, CheckErofs, checkErofsRoot)
		if err != nil {
			p.reloads.Refuse(time.Now(), err)
			log.Error("cannot reload the configuration", "error", err)
			continue
		}
		current := p.config.Load()
		reloaded, refused := config.Changed(current, next)
		merged := config.Reloaded(current, next)
		log.SetLevel(merged.Log.Level)
		p.apply(merged)
		p.reloads.Accept(time.Now(), refused)
		p.serveMetrics(ctx, merged, log.Logger)
		p.sendTraces(merged, log.Logger)
		p.page.Serve(ctx, merged)
		if file == "" {
			// Somebody has written a file, and waits for what it changes.
			log.Warn("no configuration file was read: this berth was started without --config")
		} else {
			log.Info("configuration reloaded", "file", file, "changed", append([]string{}, reloaded...))
		}
		if len(refused) > 0 {
			log.Warn("cannot reload keys that need a restart", "keys", refused)
		}
	}
}

// apply applies every key that can change while the daemon runs, to what is created from now
// on.
func (p *parts) apply(cfg *config.Daemon) {
	p.backend.apply(cfg)
	p.pods.SetJobLimits(time.Duration(cfg.Jobs.StageTimeout), time.Duration(cfg.Jobs.TotalTimeout))
	p.pods.SetShowSecrets(cfg.Debug.ShowSecrets)
	p.streams.SetIdleTimeout(time.Duration(cfg.Stream.IdleTimeout))
	p.config.Store(cfg)
}
