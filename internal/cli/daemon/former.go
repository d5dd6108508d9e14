package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
)

// engineFile has the name of the engine that runs the pods of the state directory.
const engineFile = "engine-name"

// firstEngine is the engine of a berth that wrote no such file.
const firstEngine = "native"

// retireFormer stops the pods that run under another engine than the configured one: an
// engine cannot take over the containers of another. It must succeed before the configured
// engine sees the records, or two pods could get one address.
func retireFormer(ctx context.Context, cfg *config.Daemon, former string, p *parts, log *slog.Logger) error {
	if err := retire(ctx, cfg, former, p, log); err != nil {
		return fmt.Errorf("cannot change the engine from %s to %s: the pods of the former one could not be stopped; "+
			"start berth once with engine = %q, or stop them by hand and remove %s: %w", former, cfg.Engine, former, engineNote(cfg), err)
	}
	return nil
}

// recordEngine records the engine that runs the pods from now on.
func recordEngine(cfg *config.Daemon) error {
	if err := os.WriteFile(engineNote(cfg), []byte(cfg.Engine+"\n"), 0o600); err != nil {
		return fmt.Errorf("cannot note the engine: %w", err)
	}
	return nil
}

func engineNote(cfg *config.Daemon) string { return filepath.Join(cfg.State, engineFile) }

// formerEngine returns the engine of the pods in the state directory, "" if there are none: the
// record of a pod is written before any part of it, and removed last. So an engine without pods is
// not opened, which would start it: `berth node` stops the pods first, and then the engine.
func formerEngine(cfg *config.Daemon) (string, error) {
	sandboxes, err := os.ReadDir(filepath.Join(cfg.State, podsDir, "sandboxes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("cannot list the pods of an earlier run: %w", err)
	}
	if len(sandboxes) == 0 {
		return "", nil
	}
	name, err := os.ReadFile(engineNote(cfg))
	if err == nil {
		return strings.TrimSpace(string(name)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("cannot read which engine ran the pods: %w", err)
	}
	return firstEngine, nil
}

func retire(ctx context.Context, cfg *config.Daemon, former string, p *parts, log *slog.Logger) (err error) {
	log.Warn("the engine has changed; stopping the pods of the former one", "from", former, "to", cfg.Engine)
	old := *cfg
	old.Engine, old.Runtime.CgroupDriver = former, "auto"
	old.Docker.Adopt = "off" // what it has adopted is stopped, and nothing else
	backend, err := openBackend(ctx, &old, nil, nil, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.close()) }()
	with := &parts{network: p.network, backend: backend, metrics: p.metrics, tracer: p.tracer}
	pods, err := openPods(ctx, &old, with, log)
	if err != nil {
		return err
	}
	err = pods.Retire(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return errors.Join(err, errs.IgnoreNotFound(pods.Close(closing)))
}
