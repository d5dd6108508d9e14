// Package daemon is `berth serve`: it builds the parts from the configuration, connects them,
// serves until it gets a signal, and closes the parts. Pods outlive it.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/cli/daemon/daemonlog"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/version"
	"google.golang.org/grpc"
)

// stopTimeout bounds the graceful stop: of requests under way, then of background work.
const stopTimeout = 10 * time.Second

// Load reads the configuration, and runs checks of it; each SIGHUP calls it again.
type Load func(checks ...config.Check) (*config.Daemon, error)

// Run serves until SIGTERM or SIGINT. A signal to stop is not an error. file is the configuration that load reads, empty
// for none.
func Run(ctx context.Context, file string, load Load) (err error) {
	// From here on to the end of the process, SIGHUP must not have its default effect, which is to end it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	cfg, err := load(checkOverlay, CheckErofs, checkErofsRoot)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := daemonlog.New(cfg.Log)
	slog.SetDefault(log.Logger) // libraries that log through slog's default
	log.Info("berth starts", "version", version.Version, "commit", version.Commit, "instance", instanceOf(cfg),
		"root", cfg.Root, "state", cfg.State, "network", cfg.Network.Mode)

	place, err := preparePlace(cfg, log.Logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, place.release(log.Logger)) }()

	// The socket comes first: a second daemon with the same directories must end before it touches
	// anything.
	listener, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	defer listener.Close()
	collect := sparingly()
	parts, err := build(ctx, cfg, log.Logger)
	collect()
	if err != nil && ctx.Err() != nil {
		log.Info("berth stops before it was ready", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	server := cri.NewGRPCServer(log.Logger, parts.metrics, parts.tracer)
	parts.register(server)

	stopCadvisor, err := serveCadvisor(ctx, cfg, parts.pods, log.Logger)
	if err != nil {
		return errors.Join(err, parts.close(ctx))
	}

	failed := make(chan error, 3)
	serving := func(serve func() error) {
		if err := serve(); err != nil {
			failed <- fmt.Errorf("cannot serve: %w", err)
		}
	}
	go serving(func() error { return server.Serve(listener) })
	go serving(parts.streams.Serve)
	close(parts.answering)
	parts.serveMetrics(ctx, cfg, log.Logger)
	background, end := context.WithCancel(ctx)
	defer end()
	go func() {
		if err := announce(background, parts, log.Logger); err != nil {
			failed <- err
		}
	}()
	parts.page.Serve(ctx, cfg) // it may wait for its port
	go watchdog(background, parts, log.Logger)
	go releaseMemory(background, parts, log.Logger)
	go reloadOnHangup(background, hangups, file, load, parts, log)

	select {
	case <-ctx.Done():
		logStop(parts, log.Logger)
	case err = <-failed:
	}
	notifyStopping(log.Logger)
	stop() // a second signal ends the process at once
	parts.closeWatches()
	stopCadvisor()
	stopServing(server)
	return errors.Join(err, parts.close(ctx))
}

// announce reports that the daemon is ready. It answers already what needs neither images nor the network.
func announce(ctx context.Context, parts *parts, log *slog.Logger) error {
	if err := parts.await(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the daemon ends
		}
		return err
	}
	notifyReady(log)
	log.Info("berth is ready", "socket", parts.config.Load().SocketPath(), "streaming", parts.streams.Address())
	return nil
}

// logStop logs that a signal has ended the daemon, and what becomes of the pods.
func logStop(parts *parts, log *slog.Logger) {
	if pods, err := parts.pods.ListSandboxes(context.Background(), nil); err == nil && pods.Len() == 0 {
		log.Info("berth stops; there are no pods")
		return
	}
	log.Info("berth stops; pods keep running")
}

// stopServing waits for requests under way, up to half of stopTimeout.
func stopServing(server *grpc.Server) {
	done := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout / 2):
		server.Stop()
		<-done
	}
}
