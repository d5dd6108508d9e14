package daemon

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/cli/daemon/jobcalls"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine/device"
	"github.com/berthrun/berth/internal/engine/docker"
	"github.com/berthrun/berth/internal/engine/docker/pause"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/dockerstore"
	"github.com/berthrun/berth/internal/undo"
)

// openDocker creates the engine and the image store that use a Docker Engine.
func openDocker(ctx context.Context, cfg *config.Daemon, pulls image.PullObserver, log *slog.Logger) (made *backend, err error) {
	var u undo.Stack
	defer u.OnError(ctx, &err)
	client, err := api.New(api.Options{Endpoint: cfg.Docker.Endpoint, Timeout: time.Duration(cfg.Docker.Timeout), Log: log})
	if err != nil {
		return nil, err
	}
	u.Push("close the connections to the Docker engine", func(context.Context) error { return client.Close() })
	driver := cfg.Runtime.CgroupDriver
	if driver == "auto" {
		driver = ""
	}
	engine, err := docker.New(ctx, docker.Config{
		Instance:      instanceOf(cfg),
		StateDir:      filepath.Join(cfg.State, dockerDir),
		NetNSDir:      cfg.Network.NetNSDir,
		CgroupDriver:  driver,
		StatsPeriod:   time.Duration(cfg.Stats.Period),
		RuntimeCgroup: cfg.Docker.RuntimeCgroup,
		Adoption: docker.Adoption{
			On: cfg.Adopts(), Roots: cfg.Docker.FormerRoots, Quarantine: filepath.Join(cfg.Root, podsDir, "quarantine"),
		},
		Client: client,
		Log:    log,
	}, dockerRules(cfg))
	if err != nil {
		return nil, err
	}
	u.Push("close the engine", func(context.Context) error { return engine.Close() })
	jobs := jobcalls.NewImages(log)
	store, err := dockerstore.New(dockerstore.Options{
		Client: client, Dir: filepath.Join(cfg.Root, dockerDir), Log: log,
		PullRules: dockerPullRules(cfg), Pinned: []string{pause.Reference}, Observer: pulls, Jobs: jobs,
	})
	if err != nil {
		return nil, err
	}
	warnUnused(cfg, log)
	return &backend{
		engine: engine,
		images: store,
		jobs:   jobs,
		await:  func(context.Context) error { return nil },
		apply: func(cfg *config.Daemon) {
			store.SetPullRules(dockerPullRules(cfg))
			engine.SetRules(dockerRules(cfg))
			warnUnused(cfg, log)
		},
		close: func() error { return errors.Join(engine.Close(), client.Close()) },
	}, nil
}

// warnUnused warns of keys that somebody has set and that do nothing.
func warnUnused(cfg *config.Daemon, log *slog.Logger) {
	if warning := UnusedWarning(cfg); warning != "" {
		log.Warn(warning)
	}
}

// UnusedWarning is the warning about keys that somebody has set and that do nothing over a Docker Engine,
// "" if there is none.
func UnusedWarning(cfg *config.Daemon) string {
	unused := cfg.WithoutEffect()
	if cfg.Engine != "docker" || len(unused) == 0 {
		return ""
	}
	return docker.UnusedWarning(unused)
}

func dockerPullRules(cfg *config.Daemon) dockerstore.PullRules {
	return dockerstore.PullRules{NoProgressTimeout: time.Duration(cfg.Image.NoProgressTimeout)}
}

func dockerRules(cfg *config.Daemon) docker.Rules {
	defaults := cfg.Default.Read()
	rules := docker.Rules{
		MaxLogLine:      cfg.Runtime.MaxLogLineSize,
		AppArmorOff:     cfg.Runtime.AppArmor == "off",
		AppArmorProfile: cfg.Runtime.AppArmorProfile,
		Seccomp:         seccomp.Rules{Default: cfg.Runtime.SeccompProfile, Privileged: cfg.Runtime.SeccompPrivileged},
		Devices: device.Rules{
			OwnedByUser:           cfg.Runtime.DeviceOwnership,
			PrivilegedWithoutHost: cfg.Runtime.PrivilegedNoDevices,
			Added:                 defaults.Devices,
		},
		AbsentSources:      cfg.Runtime.AbsentSources,
		AllowedAnnotations: cfg.Runtime.AllowedAnnotations,
		Defaults:           defaults.Container,
		Sysctls:            defaults.Sysctls,
		UnusedKeys:         cfg.WithoutEffect(),
	}
	if rules.MaxLogLine == 0 {
		rules.MaxLogLine = maxLogLine
	}
	return rules
}
