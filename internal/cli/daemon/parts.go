package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/daemon/jobcalls"
	"github.com/berthrun/berth/internal/cli/daemon/pageserver"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/cri/scrub"
	"github.com/berthrun/berth/internal/cri/streaming"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/httpserver"
	"github.com/berthrun/berth/internal/metrics"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/network/cni"
	"github.com/berthrun/berth/internal/network/former"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/reload"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/internal/tlsfiles"
	"github.com/berthrun/berth/internal/traces"
	"github.com/berthrun/berth/internal/undo"
	"github.com/berthrun/berth/internal/version"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// parts are the parts of a running daemon, in the order of their creation.
type parts struct {
	// config is the effective configuration; a reload replaces it.
	config  atomic.Pointer[config.Daemon]
	reloads reload.Last

	network network.Network
	// awaitNetwork is backend.await for the network.
	awaitNetwork func(context.Context) error
	backend      *backend
	// records are nil before they are read, which openPods does then.
	records *pod.Records
	pods    *pod.Service
	streams *streaming.Server
	cri     *cri.Server
	own     *berthapi.Server

	metrics       *metrics.Metrics
	metricsServer *httpserver.Server
	page          *pageserver.Server
	tracer        *traces.Tracer

	// answering is closed when requests are answered.
	answering chan struct{}
}

// build creates the parts. On error it closes those that it created.
func build(ctx context.Context, cfg *config.Daemon, log *slog.Logger) (made *parts, err error) {
	counted := metrics.New(version.Version, version.Commit)
	// Not the result, which an error sets to nil before the undo runs.
	p := &parts{metrics: counted, metricsServer: httpserver.New(counted.Handler(), "metrics", "metrics.listen", log), tracer: newTracer(cfg, log), answering: make(chan struct{})}
	p.config.Store(cfg)
	var u undo.Stack
	defer u.OnError(ctx, &err)

	former, err := formerEngine(cfg)
	if err != nil {
		return nil, err
	}
	p.sendTraces(cfg, log)
	u.Push("send the last traces", func(ctx context.Context) error { p.tracer.Close(ctx); return nil })
	u.Push("close what was opened", func(context.Context) error { return p.closeOpened() })
	if former == "" || former == cfg.Engine {
		err = p.openTogether(ctx, cfg, log)
	} else {
		err = p.openAfterRetirement(ctx, cfg, former, log)
	}
	if err != nil {
		return nil, err
	}
	if err := recordEngine(cfg); err != nil {
		return nil, err
	}

	if p.pods, err = openPods(ctx, cfg, p, log); err != nil {
		return nil, err
	}
	u.Push("close the pods", p.pods.Close)

	if p.streams, err = openStreams(ctx, cfg, p, log); err != nil {
		return nil, err
	}
	u.Push("close streaming", func(context.Context) error { return p.streams.Close() })

	p.cri, err = cri.New(cri.Options{
		Lifecycle: p.pods, Sessions: p.pods, View: p.pods, Events: p.pods, Node: p.pods, Images: p.backend.images, Streams: p.streams, Version: version.Version,
		Snapshotters: func() map[string]string { return snapshottersOf(p.config.Load()) },
		Platforms:    func() map[string]string { return platformsOf(p.config.Load()) },

		Metrics: cfg.Stats.PodMetrics,
		Config:  p.shownConfig, Log: log,
		Page:     func() any { return p.page.State() },
		Reload:   func() any { return p.reloads.State() },
		Pools:    p.pools,
		Instance: map[string]string{"name": instanceOf(cfg), "root": cfg.Root, "state": cfg.State},
	})
	if err != nil {
		return nil, err
	}
	jobs := []jobcalls.Table{p.pods, p.backend.jobs}
	p.own = &berthapi.Server{Images: p.backend.images, Jobs: jobcalls.List(jobs...), Control: jobcalls.Control(jobs...), Metrics: p.metrics.Text, Owned: p.owned}
	p.own.Platform = func(handler string) (string, error) { return platformFor(p.config.Load(), handler) }
	p.addSources()
	clean := scrub.New() // the errors of a reload quote the configuration
	p.page, err = pageserver.New(pageserver.Options{
		Pods: p.pods, Images: p.backend.images, Jobs: p.own.Jobs, Stages: p.metrics.Stages,
		Notices: func() []string {
			notices := p.reloads.State().Notices()
			for i := range notices {
				notices[i] = clean.Text(notices[i])
			}
			return notices
		},
		Examine: pageserver.Doctor(cfg.SocketPath()), Instance: instanceOf(cfg), Log: log,
	})
	if err != nil {
		return nil, err
	}
	if plugged, ok := p.network.(network.Plugged); ok {
		p.own.Plugins = plugged
	}
	if checker, ok := p.network.(network.Checker); ok {
		p.own.Checks = checker
	}
	return p, nil
}

// closeWatches ends streams of events and jobs, which do not end by themselves.
func (p *parts) closeWatches() {
	p.pods.CloseEvents()
	p.pods.CloseJobWatches()
	p.backend.jobs.Close()
}

// openTogether opens the network, the engine and the records at the same time: each reads something of every pod.
func (p *parts) openTogether(ctx context.Context, cfg *config.Daemon, log *slog.Logger) error {
	var all errgroup.Group
	all.Go(func() error { return p.openNetwork(ctx, cfg, p.answering, log) })
	all.Go(func() error { return p.openBackend(ctx, cfg, log) })
	all.Go(func() (err error) {
		p.records, err = pod.OpenRecords(podRecords(cfg, log))
		return err
	})
	return all.Wait()
}

// openAfterRetirement opens the network and the engine when the pods of a former engine must be stopped
// before the engine is opened.
func (p *parts) openAfterRetirement(ctx context.Context, cfg *config.Daemon, former string, log *slog.Logger) error {
	// The retirement needs the network before the daemon answers.
	if err := p.openNetwork(ctx, cfg, nil, log); err != nil {
		return err
	}
	if err := retireFormer(ctx, cfg, former, p, log); err != nil {
		return err
	}
	return p.openBackend(ctx, cfg, log)
}

// openNetwork opens the network. answering is that of openBackend.
func (p *parts) openNetwork(ctx context.Context, cfg *config.Daemon, answering <-chan struct{}, log *slog.Logger) error {
	opened, await, err := openNetwork(ctx, cfg, answering, p.config.Load, p.metrics, log)
	if err != nil {
		return cannotSetUp(err)
	}
	p.network = opened
	p.awaitNetwork = func(ctx context.Context) error { return cannotSetUp(await(ctx)) }
	return nil
}

// cannotSetUp is the error of a network that cannot be opened, nil for nil.
func cannotSetUp(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot set up the network: %w", err)
}

func (p *parts) openBackend(ctx context.Context, cfg *config.Daemon, log *slog.Logger) error {
	opened, err := openBackend(ctx, cfg, pullsSeen{p.metrics, p.tracer}, p.answering, log)
	if err != nil {
		return err
	}
	p.backend = opened
	return nil
}

// await returns when all that is opened in the background is open, or the reason why a part of it cannot be opened.
func (p *parts) await(ctx context.Context) error {
	var all errgroup.Group
	all.Go(func() error { return p.awaitNetwork(ctx) })
	all.Go(func() error { return p.backend.await(ctx) })
	return all.Wait()
}

// closeOpened closes the engine and the network, as far as they are open.
func (p *parts) closeOpened() error {
	var errList []error
	if p.backend != nil {
		errList = append(errList, p.backend.close())
	}
	if p.network != nil {
		errList = append(errList, p.network.Close())
	}
	return errors.Join(errList...)
}

// shownConfig is the configuration for verbose Status.
func (p *parts) shownConfig() any {
	cfg := p.config.Load()
	if cfg.Debug.ShowSecrets {
		return cfg
	}
	return config.WithoutSecrets(cfg)
}

// register adds CRI and berth's own service to the server of the one socket.
func (p *parts) register(server *grpc.Server) {
	p.cri.Register(server)
	p.own.Register(server)
}

// healthy fails when records cannot be listed within the given time.
func (p *parts) healthy(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := p.pods.ListSandboxes(ctx, nil)
	return err
}

// close closes the parts in reverse order. Pods keep running.
func (p *parts) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	p.metricsServer.Close()
	p.page.Close()
	err := errors.Join(p.streams.Close(), p.pods.Close(ctx), p.closeOpened())
	p.tracer.Close(ctx) // the spans of the jobs that have ended last
	return err
}

func openStreams(ctx context.Context, cfg *config.Daemon, p *parts, log *slog.Logger) (*streaming.Server, error) {
	opts := streaming.Options{
		Runtime: p.pods, Log: log, IdleTimeout: time.Duration(cfg.Stream.IdleTimeout),
		Address: net.JoinHostPort(cfg.Stream.Address, strconv.Itoa(cfg.Stream.Port)),
	}
	if cfg.Stream.TLS != "off" {
		opts.TLS = &tlsfiles.Files{
			CertFile: cfg.Stream.TLSCert, KeyFile: cfg.Stream.TLSKey, ClientCAFile: cfg.Stream.TLSClientCA,
			MinVersion: tls.VersionTLS12,
		}
		if cfg.Stream.TLSMinVersion == "1.3" {
			opts.TLS.MinVersion = tls.VersionTLS13
		}
		var err error
		if opts.TLS.CipherSuites, err = cfg.Stream.CipherSuites(); err != nil {
			return nil, fmt.Errorf("stream.tls_cipher_suites: %w: %w", err, errs.Invalid)
		}
	}
	return streaming.Listen(ctx, opts)
}

// cniNetworkDir is the directory, below that of the network, of pods that CNI plugins have attached.
const cniNetworkDir = "cni"

// formerNetworkDir is the directory, below that of the network, of adopted pods that are on
// another network than new ones.
const formerNetworkDir = "former"

// kubenetBridge is the name that kubenet's bridge has.
const kubenetBridge = "cbr0"

// openNetwork opens the network. answering is that of openBackend. current returns the configuration in force, which a
// reload replaces. await returns when the network is open, or the reason why it cannot be opened.
func openNetwork(ctx context.Context, cfg *config.Daemon, answering <-chan struct{}, current func() *config.Daemon, observer cni.Observer, log *slog.Logger) (_ network.Network, await func(context.Context) error, err error) {
	if cfg.Network.Mode == "cni" {
		if cfg.Network.Hairpin == string(builtin.PromiscuousBridge) {
			log.Warn("network.hairpin = \"promiscuous-bridge\" needs a bridge of berth's own (network.mode builtin or kubenet); "+
				"it is taken for hairpin-veth, which the CNI configuration decides", "mode", cfg.Network.Mode)
		}
		opened, err := openCNI(ctx, cfg, cniNetworkDir, func(handler string) string { return cniDirOf(current(), handler) }, observer, log)
		return opened, func(context.Context) error { return nil }, err
	}
	return openBuiltin(ctx, cfg, answering, current, observer, log)
}

// openBuiltin opens berth's own network, and behind it those of CNI plugins that have attached or adopted pods.
func openBuiltin(ctx context.Context, cfg *config.Daemon, answering <-chan struct{}, current func() *config.Daemon, observer cni.Observer, log *slog.Logger) (_ network.Network, await func(context.Context) error, err error) {
	var adopted, attached *cni.Network
	var u undo.Stack
	defer u.OnError(ctx, &err)
	// What an earlier start has adopted or attached is detached whatever the configuration says now.
	if hasFormer(cfg) {
		if adopted, err = openCNI(ctx, cfg, formerNetworkDir, nil, observer, log); err != nil {
			return nil, nil, err
		}
		u.Push("close the network of adopted pods", func(context.Context) error { return adopted.Close() })
	}
	if cni.HasRecords(filepath.Join(cfg.Root, networkDir, cniNetworkDir)) {
		log.Info("CNI plugins have attached pods before network.mode was changed; they detach these pods", "mode", cfg.Network.Mode)
		if attached, err = openCNI(ctx, cfg, cniNetworkDir, func(handler string) string { return cniDirOf(current(), handler) }, observer, log); err != nil {
			return nil, nil, err
		}
		u.Push("close the network of attached pods", func(context.Context) error { return attached.Close() })
	}
	taken := func(addr netip.Addr) bool {
		return adopted != nil && adopted.Has(addr) || attached != nil && attached.Has(addr)
	}
	own, err := startBuiltin(ctx, cfg, answering, taken, log)
	if err != nil {
		return nil, nil, err
	}
	var all network.Network = own
	if attached != nil {
		all = former.New(all, attached)
	}
	if adopted != nil {
		all = former.NewAdopting(all, adopted)
	}
	return all, own.Await, nil
}

// hasFormer reports whether pods of a former runtime are or were adopted. What an earlier start has adopted is detached
// whatever the configuration says now.
func hasFormer(cfg *config.Daemon) bool {
	_, err := os.Stat(filepath.Join(cfg.Root, networkDir, formerNetworkDir))
	return !errors.Is(err, os.ErrNotExist) || cfg.Adopts()
}

// openCNI opens the network of CNI plugins whose records are in a directory below that of the
// network. confDirOf is that of cni.Config.
func openCNI(ctx context.Context, cfg *config.Daemon, dir string, confDirOf func(handler string) string, observer cni.Observer, log *slog.Logger) (*cni.Network, error) {
	return cni.New(ctx, cni.Config{
		ConfDir:   cfg.Network.ConfDir,
		Template:  cfg.Network.ConfTemplate,
		ConfDirOf: confDirOf,
		BinDirs:   cfg.Network.BinDirs,
		RootDir:   filepath.Join(cfg.Root, networkDir, dir),
		StateDir:  filepath.Join(cfg.State, networkDir, dir),
		Log:       log,
		Observer:  observer,

		FormerCacheDir: cfg.Docker.FormerCNICache,
		Retired:        dir == formerNetworkDir || cfg.Network.Mode != "cni",
		AnyHostPorts:   cfg.Network.HostPorts == "cni",
		MaxNetworks:    cfg.Network.MaxConfNum,
		Serially:       cfg.Network.Serially,
		Preference:     cni.Preference(cfg.Network.IPPreference),
		StatusGrace:    time.Duration(cfg.Network.StatusGrace),
		MaxProcesses:   cfg.Network.MaxProcesses,
		ProgramsOnly:   !cfg.Network.InProcess,
	})
}

// cniDirOf returns the directory of CNI configurations for pods that name a handler, or "" for the default one.
func cniDirOf(cfg *config.Daemon, handler string) string {
	return cfg.Handlers[cmp.Or(handler, cfg.Runtime.DefaultHandler)].CNIConfDir
}

// startBuiltin opens berth's own bridge in the background, once the daemon answers. taken reports which addresses other
// pods have.
func startBuiltin(ctx context.Context, cfg *config.Daemon, answering <-chan struct{}, taken func(netip.Addr) bool, log *slog.Logger) (*builtin.Network, error) {
	subnets, err := prefixes(cfg.Network.Subnets)
	if err != nil {
		return nil, err
	}
	cluster, err := prefixes(cfg.Network.Cluster)
	if err != nil {
		return nil, err
	}
	bridge, await := cfg.Network.Bridge, cfg.Network.Await
	if cfg.Network.Mode == "kubenet" {
		bridge, await = cmp.Or(bridge, kubenetBridge), true
	}
	hairpin := builtin.Hairpin(cfg.Network.Hairpin)
	if cfg.Network.Hairpin == "auto" {
		hairpin = builtin.HairpinVeth
	}
	return builtin.Start(ctx, builtin.Config{
		After:      answering,
		Mode:       cfg.Network.Mode,
		Hairpin:    hairpin,
		Taken:      taken,
		Instance:   instanceOf(cfg),
		StateDir:   filepath.Join(cfg.State, networkDir),
		RootDir:    filepath.Join(cfg.Root, networkDir, "builtin"),
		Bridge:     bridge,
		Subnets:    subnets,
		RoutesFile: cfg.Network.RoutesFile,
		MTU:        cfg.Network.MTU,
		CNIConfDir: cfg.Network.ConfDir,
		Log:        log,

		AwaitPodCIDR: await,
		Cluster:      cluster,
	})
}

func prefixes(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		subnet, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("subnet %q: %w: %w", text, errs.Invalid, err)
		}
		all = append(all, subnet)
	}
	return all, nil
}

// podRecords says where the records of pods are.
func podRecords(cfg *config.Daemon, log *slog.Logger) record.Options {
	return record.Options{StateDir: filepath.Join(cfg.State, podsDir), RootDir: filepath.Join(cfg.Root, podsDir), Log: log}
}

func openPods(ctx context.Context, cfg *config.Daemon, p *parts, log *slog.Logger) (*pod.Service, error) {
	boot, err := sysproc.BootID()
	if err != nil {
		return nil, err
	}
	plugins, err := openNRI(cfg, log)
	if err != nil {
		return nil, err
	}
	return pod.New(ctx, pod.Options{
		NRI:         plugins,
		Engine:      p.backend.engine,
		Images:      p.backend.images,
		Network:     p.network,
		StateDir:    podRecords(cfg, log).StateDir,
		RootDir:     podRecords(cfg, log).RootDir,
		Records:     p.records,
		BootID:      boot,
		Log:         log,
		Limits:      pod.Limits{Stage: time.Duration(cfg.Jobs.StageTimeout), Total: time.Duration(cfg.Jobs.TotalTimeout)},
		ShowSecrets: cfg.Debug.ShowSecrets,
		Observer:    p.metrics,
		Tracer:      p.tracer,
		After:       p.answering,
		Platforms:   func() map[string]string { return platformsOf(p.config.Load()) },
	})
}
