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
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/cri"
	"github.com/berthrun/berth/internal/cri/streaming"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/network/cni"
	"github.com/berthrun/berth/internal/network/former"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/internal/undo"
	"github.com/berthrun/berth/internal/version"
	"google.golang.org/grpc"
)

// parts are the parts of a running daemon, in the order of their creation.
type parts struct {
	// config is the effective configuration; a reload replaces it.
	config atomic.Pointer[config.Daemon]

	network network.Network
	backend *backend
	pods    *pod.Service
	streams *streaming.Server
	cri     *cri.Server
	own     *berthapi.Server
}

// build creates the parts. On error it closes those that it created.
func build(ctx context.Context, cfg *config.Daemon, log *slog.Logger) (made *parts, err error) {
	p := &parts{} // not the result, which an error sets to nil before the undo runs
	p.config.Store(cfg)
	var u undo.Stack
	defer u.OnError(ctx, &err)

	if p.network, err = openNetwork(ctx, cfg, log); err != nil {
		return nil, fmt.Errorf("cannot set up the network: %w", err)
	}
	u.Push("close the network", func(context.Context) error { return p.network.Close() })

	if err := retireFormer(ctx, cfg, p, log); err != nil {
		return nil, err
	}
	if p.backend, err = openBackend(ctx, cfg, log); err != nil {
		return nil, err
	}
	u.Push("close the engine", func(context.Context) error { return p.backend.close() })

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
		Metrics: cfg.Stats.PodMetrics,
		Config:  p.shownConfig, Log: log,
		Instance: map[string]string{"name": instanceOf(cfg), "root": cfg.Root, "state": cfg.State},
	})
	if err != nil {
		return nil, err
	}
	p.own = &berthapi.Server{Images: p.backend.images, Jobs: p.jobs}
	if plugged, ok := p.network.(network.Plugged); ok {
		p.own.Plugins = plugged
	}
	return p, nil
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
	return errors.Join(p.streams.Close(), p.pods.Close(ctx), p.backend.close(), p.network.Close())
}

func openStreams(ctx context.Context, cfg *config.Daemon, p *parts, log *slog.Logger) (*streaming.Server, error) {
	opts := streaming.Options{
		Runtime: p.pods, Log: log, IdleTimeout: time.Duration(cfg.Stream.IdleTimeout),
		Address: net.JoinHostPort(cfg.Stream.Address, strconv.Itoa(cfg.Stream.Port)),
	}
	if cfg.Stream.TLS != "off" {
		opts.TLS = &streaming.TLS{
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

// formerNetworkDir is the directory, below that of the network, of adopted pods that are on
// another network than new ones.
const formerNetworkDir = "former"

// kubenetBridge is the name that kubenet's bridge has.
const kubenetBridge = "cbr0"

func openNetwork(ctx context.Context, cfg *config.Daemon, log *slog.Logger) (network.Network, error) {
	if cfg.Network.Mode == "cni" {
		if cfg.Network.Hairpin == string(builtin.PromiscuousBridge) {
			log.Warn("network.hairpin = \"promiscuous-bridge\" needs a bridge of berth's own (network.mode builtin or kubenet); "+
				"it is taken for hairpin-veth, which the CNI configuration decides", "mode", cfg.Network.Mode)
		}
		return openCNI(ctx, cfg, "cni", log)
	}
	// What an earlier start has adopted is detached whatever the configuration says now.
	_, err := os.Stat(filepath.Join(cfg.Root, networkDir, formerNetworkDir))
	if errors.Is(err, os.ErrNotExist) && !cfg.Adopts() {
		return openBuiltin(ctx, cfg, nil, log)
	}
	adopted, err := openCNI(ctx, cfg, formerNetworkDir, log)
	if err != nil {
		return nil, err
	}
	own, err := openBuiltin(ctx, cfg, adopted.Has, log)
	if err != nil {
		return nil, errors.Join(err, adopted.Close())
	}
	return former.New(own, adopted), nil
}

// openCNI opens the network of CNI plugins whose records are in a directory below that of the
// network.
func openCNI(ctx context.Context, cfg *config.Daemon, dir string, log *slog.Logger) (*cni.Network, error) {
	return cni.New(ctx, cni.Config{
		ConfDir: cfg.Network.ConfDir,
		BinDirs: cfg.Network.BinDirs,
		RootDir: filepath.Join(cfg.Root, networkDir, dir),
		Log:     log,

		FormerCacheDir: cfg.Docker.FormerCNICache,
		Retired:        dir == formerNetworkDir,
		AnyHostPorts:   cfg.Network.HostPorts == "cni",
		MaxNetworks:    cfg.Network.MaxConfNum,
		Serially:       cfg.Network.Serially,
		Preference:     cni.Preference(cfg.Network.IPPreference),
		StatusGrace:    time.Duration(cfg.Network.StatusGrace),
	})
}

// openBuiltin opens berth's own bridge. taken reports which addresses other pods have, nil for none.
func openBuiltin(ctx context.Context, cfg *config.Daemon, taken func(netip.Addr) bool, log *slog.Logger) (network.Network, error) {
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
	return builtin.New(ctx, builtin.Config{
		Mode:       cfg.Network.Mode,
		Hairpin:    hairpin,
		Taken:      taken,
		Instance:   instanceOf(cfg),
		StateDir:   filepath.Join(cfg.State, networkDir),
		RootDir:    filepath.Join(cfg.Root, networkDir, "builtin"),
		Bridge:     bridge,
		Subnets:    subnets,
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
		StateDir:    filepath.Join(cfg.State, podsDir),
		RootDir:     filepath.Join(cfg.Root, podsDir),
		BootID:      boot,
		Log:         log,
		Limits:      pod.Limits{Stage: time.Duration(cfg.Jobs.StageTimeout), Total: time.Duration(cfg.Jobs.TotalTimeout)},
		ShowSecrets: cfg.Debug.ShowSecrets,
	})
}

// jobs shows the pods' running jobs in the shape of berth's own service.
func (p *parts) jobs() []berthapi.Job {
	var all []berthapi.Job
	for _, info := range p.pods.Jobs() {
		all = append(all, berthapi.Job{
			Key: info.Key, Kind: string(info.Kind), ID: info.ID,
			Stage: info.Stage, WaitsFor: info.WaitsFor, StageAge: info.StageAge, Age: info.Age,
			Waiters: info.Waiters, Cancelled: info.Cancelled, Slow: info.Slow,
		})
	}
	return all
}
