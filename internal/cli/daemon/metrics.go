package daemon

import (
	"context"
	"log/slog"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/httpserver"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/metrics"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/tlsfiles"
)

// serveMetrics serves the metrics as the configuration says. A node does without them rather than without its
// pods, so a fault is logged.
func (p *parts) serveMetrics(ctx context.Context, cfg *config.Daemon, log *slog.Logger) {
	p.metrics.SetPeers(cfg.Metrics.Peers)
	err := p.metricsServer.Apply(ctx, httpserver.Settings{
		Listen: cfg.Metrics.Listen,
		TLS:    tlsfiles.Files{CertFile: cfg.Metrics.TLSCert, KeyFile: cfg.Metrics.TLSKey, ClientCAFile: cfg.Metrics.ClientCA},
	})
	if err == nil {
		return
	}
	if address := p.metricsServer.Address(); address != "" {
		log.Error("the metrics are served as before; mend the cause and reload the configuration", "address", address, "error", errs.Message(err))
		return
	}
	log.Error("the metrics are not served; mend the cause and reload the configuration", "error", errs.Message(err))
}

// addSources has the metrics read the figures of the parts.
func (p *parts) addSources() {
	for _, source := range []metrics.Source{
		{Name: "pods", Read: p.readPods},
		{Name: "jobs", Read: p.readJobs},
		{Name: "images", Read: p.readImages},
		{Name: "disk", Read: p.readDisk},
		{Name: "pools", Read: p.readPools},
		{Name: "engine", Read: p.readEngine},
		{Name: "reload", Read: p.readReload},
	} {
		p.metrics.AddSource(source)
	}
}

func (p *parts) readPods(_ context.Context, set metrics.Set) error {
	sandboxes, containers := p.pods.States()
	for state, n := range sandboxes {
		set(metrics.Pods, float64(n), string(state))
	}
	for state, n := range containers {
		set(metrics.Containers, float64(n), string(state))
	}
	counters := p.pods.EventCounters()
	set(metrics.EventsPublished, float64(counters.Published))
	set(metrics.EventsDropped, float64(counters.Dropped))
	set(metrics.EventSubscribers, float64(counters.Subscribers))
	return nil
}

func (p *parts) readJobs(_ context.Context, set metrics.Set) error {
	type key struct{ kind, state string }
	counts, oldest := map[key]int{}, map[string]float64{}
	for _, kind := range p.pods.JobKinds() {
		counts[key{string(kind), "running"}], counts[key{string(kind), "waiting"}] = 0, 0
		oldest[string(kind)] = 0
	}
	for _, info := range p.pods.Jobs() {
		kind, state := string(info.Kind), "running"
		if info.Stage == job.StageWait {
			state = "waiting"
		}
		counts[key{kind, state}]++
		oldest[kind] = max(oldest[kind], info.StageAge.Seconds())
	}
	for k, n := range counts {
		set(metrics.Jobs, float64(n), k.kind, k.state)
	}
	for kind, seconds := range oldest {
		set(metrics.JobOldestStage, seconds, kind)
	}
	return nil
}

func (p *parts) readImages(ctx context.Context, set metrics.Set) error {
	images, err := p.backend.images.List(ctx)
	if err != nil {
		return err
	}
	var bytes int64
	for i := range images {
		bytes += images[i].Size
	}
	set(metrics.Images, float64(len(images)))
	set(metrics.ImagesBytes, float64(bytes))
	return nil
}

func (p *parts) readDisk(ctx context.Context, set metrics.Set) error {
	usage, err := p.backend.images.Usage(ctx)
	if err != nil {
		return err
	}
	for area, usages := range map[string][]image.Usage{"images": usage.Images, "containers": usage.Containers} {
		var bytes, inodes int64
		for _, u := range usages {
			bytes, inodes = bytes+u.Bytes, inodes+u.Inodes
		}
		set(metrics.DiskBytes, float64(bytes), area)
		if inodes > 0 { // else they are not known
			set(metrics.DiskInodes, float64(inodes), area)
		}
	}
	return nil
}

// pools are the pools of all parts, none with engine docker.
func (p *parts) pools() []figures.Pool {
	var all []figures.Pool
	for _, part := range []any{p.backend.engine, p.backend.images} {
		if pooled, ok := part.(engine.Pooled); ok {
			all = append(all, pooled.Pools()...)
		}
	}
	return all
}

func (p *parts) readPools(_ context.Context, set metrics.Set) error {
	for _, pool := range p.pools() {
		set(metrics.PoolSize, float64(pool.Size), pool.Name)
		set(metrics.PoolReady, float64(pool.Ready), pool.Name)
		set(metrics.PoolHits, float64(pool.Hits), pool.Name)
		set(metrics.PoolMisses, float64(pool.Misses), pool.Name)
	}
	return nil
}

func (p *parts) readReload(_ context.Context, set metrics.Set) error {
	state, successful := p.reloads.State(), 1.0
	if state.Refused {
		successful = 0
	}
	set(metrics.ConfigReloadOK, successful)
	set(metrics.ConfigNeedRestart, float64(len(state.NeedRestart)))
	return nil
}

func (p *parts) readEngine(ctx context.Context, set metrics.Set) error {
	for call, n := range p.pods.EngineCalls() {
		set(metrics.EngineCalls, float64(n.Calls), call)
		set(metrics.EngineCallErrors, float64(n.Errors), call)
		set(metrics.EngineCallTimeouts, float64(n.Timeouts), call)
		set(metrics.EngineCallSeconds, n.Seconds, call)
	}
	supervised, ok := p.backend.engine.(engine.Supervised)
	if !ok {
		return nil
	}
	counted, err := supervised.SupervisorFigures(ctx)
	if err != nil {
		set(metrics.SupervisorUp, 0)
		p.metrics.SetSupervisorPid(0)
		return err
	}
	set(metrics.SupervisorUp, 1)
	p.metrics.SetSupervisorPid(counted.Pid)
	set(metrics.SupervisorFDs, float64(counted.Descriptors))
	set(metrics.SupervisorMaxFDs, float64(counted.DescriptorLimit))
	for starter, n := range counted.Starts {
		set(metrics.ContainerStarts, float64(n), starter)
	}
	for reason, n := range counted.StartReasons {
		set(metrics.StartReasons, float64(n), reason)
	}
	set(metrics.LogReadBytes, float64(counted.Logs.ReadBytes))
	set(metrics.LogWrittenBytes, float64(counted.Logs.WrittenBytes))
	set(metrics.LogWrittenLines, float64(counted.Logs.WrittenLines))
	set(metrics.LogDiscardedBytes, float64(counted.Logs.DiscardedBytes))
	set(metrics.LogThrottled, counted.Logs.Throttled.Seconds())
	set(metrics.LogPendingBytes, float64(counted.Logs.PendingBytes))
	set(metrics.LogFaults, float64(counted.Logs.Faults))
	return nil
}
