// Package nri connects plugins of the Node Resource Interface: it starts and accepts them,
// sends them the events of pods and containers, and collects what they answer.
//
// It owns the list of plugins. It knows pods and containers in NRI's words only; package
// pod/plugins translates records. Calls to plugins are bounded by the request timeout, and come
// one at a time, as NRI's library has it.
package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	"github.com/containerd/ttrpc"

	"github.com/berthrun/berth/internal/errs"
)

// Runtime is what plugins see and change. No method may send an event: plugins wait meanwhile.
type Runtime interface {
	// Snapshot returns all pods, and all containers that have not exited, for a plugin that
	// has just connected.
	Snapshot(ctx context.Context) ([]*api.PodSandbox, []*api.Container)
	// Update changes the limits of a container.
	Update(ctx context.Context, update *api.ContainerUpdate) error
	// Evict begins to stop a container. It does not wait.
	Evict(ctx context.Context, id, reason string) error
}

// Config configures a Host.
type Config struct {
	// Socket is where plugins connect, "" for nowhere.
	Socket string
	// PluginDir holds the plugins that Start starts, ConfigDir their configurations.
	PluginDir, ConfigDir string
	// Registration bounds the registration of a plugin, Request each call to it.
	Registration, Request time.Duration
	// Validator are the rules by which adjustments are refused.
	Validator validator.DefaultValidatorConfig
	// Version is berth's own.
	Version string
	// Log is slog's default when nil.
	Log *slog.Logger
}

// Host serves plugins. All methods are safe for concurrent use.
type Host struct {
	cfg        Config
	adaptation *adaptation.Adaptation
	runtime    Runtime
	table      *table
	log        *slog.Logger
	// started is closed by Start, or by Unblock.
	started   chan struct{}
	startOnce sync.Once
	// creates lets one CreateContainer at a time use the table's list of faults.
	creates sync.Mutex
	// shared is true when another program serves the socket.
	shared bool
	// alone is true while Start starts no plugin.
	alone atomic.Bool

	// mu guards what follows. ended is closed by Close; pending is closed once the updates of all
	// synchronizations are made.
	mu             sync.Mutex
	ended, pending chan struct{}
}

// New returns a Host. The timeouts are those of the process: NRI's library keeps one set.
func New(cfg Config) (*Host, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	h := &Host{cfg: cfg, log: cfg.Log, table: newTable(cfg.Log), started: make(chan struct{}), ended: make(chan struct{}), pending: make(chan struct{})}
	close(h.pending)
	adaptation.SetPluginRegistrationTimeout(cfg.Registration)
	adaptation.SetPluginRequestTimeout(cfg.Request)
	options := []adaptation.Option{
		adaptation.WithPluginPath(cfg.PluginDir),
		adaptation.WithPluginConfigPath(cfg.ConfigDir),
		adaptation.WithSocketPath(cfg.Socket),
		adaptation.WithDefaultValidator(&cfg.Validator),
		adaptation.WithMetrics(h.table),
		adaptation.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(h.table.call)}, []ttrpc.ServerOpt{
			ttrpc.WithServerHandshaker(h.table), ttrpc.WithUnaryServerInterceptor(h.table.intercept),
		}),
	}
	if h.shared = inUse(cfg.Socket); h.shared || cfg.Socket == "" {
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	var err error
	h.adaptation, err = adaptation.New("berth", cfg.Version, h.synchronize, h.updateFromPlugin, options...)
	if err != nil {
		return nil, fmt.Errorf("cannot set up NRI: %w", err)
	}
	return h, nil
}

// inUse reports whether a program answers on a socket.
func inUse(socket string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// Start starts the plugins of the directory, one after another, synchronizes them, and listens for
// others. Events wait until then. Each plugin has the registration timeout to register, and then the
// request timeout for each of two answers, so n plugins that do not register delay Start by n times
// the registration timeout. One that does not start is logged, shown by Info, and left out.
func (h *Host) Start(runtime Runtime) error {
	h.runtime = runtime
	defer h.Unblock()
	if h.shared {
		h.log.Warn("another program serves the socket of NRI: plugins cannot connect to berth", "socket", h.cfg.Socket)
	}
	programs, faults := Programs(h.cfg.PluginDir, h.cfg.ConfigDir)
	h.alone.Store(len(programs) == 0)
	defer h.alone.Store(false)
	starting.Store(h.table)
	defer starting.Store(nil)
	err := errors.Join(faults...)
	if err == nil {
		err = h.adaptation.Start()
	}
	if err != nil {
		return fmt.Errorf("cannot start NRI (nri.plugin_dir %q, nri.socket %q): %w", h.cfg.PluginDir, h.cfg.Socket, err)
	}
	h.table.started(programs, h.cfg.Registration)
	return nil
}

// Programs returns the names of the plugins that Start starts, in their order, and the faults for which it refuses to
// start: it would run containers without a plugin that was meant for them. A directory that does not exist has none.
func Programs(dir, configDir string) (names []string, faults []error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, []error{err}
	}
	for _, entry := range entries {
		// Start ignores what cannot be executed.
		info, err := entry.Info()
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		_, base, err := api.ParsePluginName(entry.Name())
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: want a name INDEX-NAME with an index of two digits, such as 10-logger; rename it, or make it not executable: %w",
				filepath.Join(dir, entry.Name()), errs.Invalid))
			continue
		}
		names = append(names, entry.Name())
		if err := readable(configDir, entry.Name(), base); err != nil {
			faults = append(faults, fmt.Errorf("the configuration of plugin %s: %w", entry.Name(), err))
		}
	}
	return names, faults
}

// readable returns the error of reading the configuration of a plugin. None is no error.
func readable(dir, name, base string) error {
	for _, file := range []string{name + ".conf", base + ".conf"} {
		if _, err := os.ReadFile(filepath.Join(dir, file)); !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Unblock lets events that wait for Start go on without plugins.
func (h *Host) Unblock() { h.startOnce.Do(func() { close(h.started) }) }

// Close ends the plugins that Start has started and the updates that synchronizations have asked for,
// and closes the socket. Other plugins notice when the process ends.
func (h *Host) Close() {
	h.table.close()
	h.adaptation.Stop()
	h.mu.Lock()
	select {
	case <-h.ended:
	default:
		close(h.ended)
	}
	pending := h.pending
	h.mu.Unlock()
	<-pending
}

// Hold keeps plugins from being synchronized until release is called, so that an event and the
// change that it reports are one step for them. active is false when no plugin is connected.
// Hold waits until Start has returned. The caller must not call Hold again before release.
func (h *Host) Hold(ctx context.Context) (active bool, release func(), err error) {
	select {
	case <-h.started:
	case <-ctx.Done():
		return false, nil, context.Cause(ctx)
	}
	block := h.adaptation.BlockPluginSync()
	return h.table.active(), block.Unblock, nil
}

// Info describes the plugins, for people.
func (h *Host) Info() *Info {
	info := &Info{Socket: h.cfg.Socket, PluginDir: h.cfg.PluginDir, Plugins: h.table.plugins()}
	if h.shared {
		info.Warning = "another program serves " + h.cfg.Socket + ": plugins cannot connect to berth"
	}
	return info
}

// synchronize sends all pods and containers to a plugin. The library calls it between holds, and in
// Start, also when that starts none: a snapshot would read the spec of every container then, at each
// start of the daemon.
func (h *Host) synchronize(ctx context.Context, synchronize adaptation.SyncCB) error {
	return errs.Guard("synchronization of an NRI plugin", func() error {
		var pods []*api.PodSandbox
		var containers []*api.Container
		if !h.alone.Load() {
			pods, containers = h.runtime.Snapshot(ctx)
		}
		updates, err := synchronize(ctx, pods, containers)
		if err != nil {
			return err
		}
		h.applyLater(ctx, updates)
		return nil
	})
}

// applyLater makes the updates that a synchronization has asked for. It does not wait: all events wait
// for the end of a synchronization, and each update may wait for a container.
func (h *Host) applyLater(ctx context.Context, updates []*api.ContainerUpdate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	earlier, done := h.pending, make(chan struct{})
	select {
	case <-h.ended:
		return
	default:
		h.pending = done
	}
	go func() {
		defer close(done)
		<-earlier
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		go func() {
			select {
			case <-h.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
		errs.Protect("updates of an NRI plugin", func() { h.apply(ctx, updates) })
	}()
}

// updateFromPlugin makes updates that a plugin asks for, after those of its synchronization.
func (h *Host) updateFromPlugin(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	h.mu.Lock()
	pending := h.pending
	h.mu.Unlock()
	select {
	case <-pending:
	case <-ctx.Done():
		return updates, fmt.Errorf("cannot update containers: updates of a synchronization are not made yet: %w", context.Cause(ctx))
	}
	var failed []*api.ContainerUpdate
	err := errs.Guard("updates of an NRI plugin", func() error {
		failed = h.apply(ctx, updates)
		return nil
	})
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("cannot update %d of %d containers; berth's log has the reasons", len(failed), len(updates))
	}
	return failed, err
}

// apply updates containers for plugins. It returns the updates that failed and must not.
func (h *Host) apply(ctx context.Context, updates []*api.ContainerUpdate) []*api.ContainerUpdate {
	var failed []*api.ContainerUpdate
	for _, update := range updates {
		err := context.Cause(ctx)
		if err == nil {
			err = h.runtime.Update(ctx, update)
		}
		if err == nil {
			continue
		}
		h.log.Warn("cannot update a container for an NRI plugin", "container", update.GetContainerId(), "error", err)
		if !update.GetIgnoreFailure() {
			failed = append(failed, update)
		}
	}
	return failed
}

func (h *Host) evict(ctx context.Context, evictions []*api.ContainerEviction) {
	for _, e := range evictions {
		if err := h.runtime.Evict(ctx, e.GetContainerId(), e.GetReason()); err != nil {
			h.log.Warn("cannot evict a container for an NRI plugin", "container", e.GetContainerId(), "error", err)
		}
	}
}
