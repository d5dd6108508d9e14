package daemon

import (
	"context"
	"log/slog"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "state", state, "error", err)
	}
}

func notifyReady(log *slog.Logger)    { notify(log, systemd.SdNotifyReady) }
func notifyStopping(log *slog.Logger) { notify(log, systemd.SdNotifyStopping) }

// watchdog notifies systemd's watchdog as long as the daemon is healthy: it can list its
// records within the interval.
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
			log.Error("the daemon is unhealthy; systemd's watchdog is not notified", "error", err)
			continue
		}
		notify(log, systemd.SdNotifyWatchdog)
	}
}
