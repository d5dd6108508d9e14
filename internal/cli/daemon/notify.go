package daemon

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/config"
	systemd "github.com/coreos/go-systemd/v22/daemon"
)

func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("cannot tell systemd", "state", state, "error", err)
	}
}

func notifyReady(log *slog.Logger)    { notify(log, systemd.SdNotifyReady) }
func notifyStopping(log *slog.Logger) { notify(log, systemd.SdNotifyStopping) }

// watchdog tells systemd that the daemon works, as long as it does: records can be
// listed within the interval.
func watchdog(ctx context.Context, p *parts, log *slog.Logger) {
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("cannot read systemd's watchdog interval", "error", err)
	}
	if interval == 0 {
		return
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := p.healthy(ctx, interval/3); err != nil {
			log.Error("the daemon does not work; systemd is not told that it does", "error", err)
			continue
		}
		notify(log, systemd.SdNotifyWatchdog)
	}
}

// reloadOnHangup reads the configuration again on SIGHUP. A bad file changes
// nothing; a key that cannot change while the daemon runs is refused by name.
func reloadOnHangup(ctx context.Context, load Load, current *config.Daemon, log *logger) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		next, err := load()
		if err != nil {
			log.Error("the configuration is not reloaded: it has faults", "error", err)
			continue
		}
		reloaded, refused := config.Changed(current, next)
		log.setLevel(next.Log.Level)
		current.Log.Level = next.Log.Level
		log.Info("configuration reloaded", "changed", reloaded)
		if len(refused) > 0 {
			log.Warn("these keys change with the next start only", "keys", refused)
		}
	}
}
