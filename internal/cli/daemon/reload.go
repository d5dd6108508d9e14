package daemon

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/engine/native"
	"github.com/berthrun/berth/internal/image/local"
)

// reloadOnHangup reads the configuration again on SIGHUP. A bad file changes
// nothing; a key that cannot change while the daemon runs is refused by name.
func reloadOnHangup(ctx context.Context, load Load, p *parts, log *logger) {
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
		current := p.config.Load()
		reloaded, refused := config.Changed(current, next)
		merged := config.Reloaded(current, next)
		log.setLevel(merged.Log.Level)
		p.apply(merged)
		log.Info("configuration reloaded", "changed", reloaded)
		if len(refused) > 0 {
			log.Warn("these keys change with the next start only, and keep their values until then", "keys", refused)
		}
	}
}

// apply makes every key hold that can change while the daemon runs: for what is made
// from now on.
func (p *parts) apply(cfg *config.Daemon) {
	p.images.SetPullRules(pullRules(cfg))
	p.engine.SetRules(engineRules(cfg))
	p.pods.SetJobLimits(time.Duration(cfg.Jobs.StageTimeout), time.Duration(cfg.Jobs.TotalTimeout))
	p.pods.SetShowSecrets(cfg.Debug.ShowSecrets)
	p.streams.SetIdleTimeout(time.Duration(cfg.Stream.IdleTimeout))
	p.config.Store(cfg)
}

func pullRules(cfg *config.Daemon) local.PullRules {
	return local.PullRules{
		RegistryConfigDirs:     cfg.Image.RegistryConfigDirs,
		NoProgressTimeout:      time.Duration(cfg.Image.NoProgressTimeout),
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads,
		MaxLayer:               int64(cfg.Image.MaxLayerGiB) << 30,
	}
}

// maxLogLine is the longest line of a container's log that is not split.
const maxLogLine = 1 << 20

func engineRules(cfg *config.Daemon) native.Rules {
	defaults := cfg.Default.Read()
	rules := native.Rules{
		MaxLogLine: cfg.Runtime.MaxLogLineSize,
		LogRate:    int64(cfg.Runtime.LogRateMiB) << 20,
		Devices: native.DeviceRules{
			OwnedByUser:           cfg.Runtime.DeviceOwnership,
			PrivilegedWithoutHost: cfg.Runtime.PrivilegedNoDevices,
			PrivilegedAllAllowed:  cfg.Runtime.PrivilegedAllowDevice,
			CDIDirs:               cfg.Runtime.CDISpecDirs,
			Added:                 defaults.Devices,
		},
		SharedVolumes:        cfg.Runtime.SELinuxVolume == "shared",
		AppArmorOff:          cfg.Runtime.AppArmor == "off",
		AppArmorProfile:      cfg.Runtime.AppArmorProfile,
		Seccomp:              native.SeccompRules{Default: cfg.Runtime.SeccompProfile, Privileged: cfg.Runtime.SeccompPrivileged},
		AbsentSources:        cfg.Runtime.AbsentSources,
		NoImageVolumes:       cfg.Runtime.ImageVolumes == "ignore",
		PodAnnotations:       cfg.Runtime.PodAnnotations,
		ContainerAnnotations: cfg.Runtime.ContainerAnnotations,
		AllowedAnnotations:   cfg.Runtime.AllowedAnnotations,
		Defaults:             defaults.Container,
		Sysctls:              defaults.Sysctls,
	}
	if rules.MaxLogLine == 0 {
		rules.MaxLogLine = maxLogLine
	}
	return rules
}
