// Package plugins reports to NRI plugins what the jobs of pods and containers do, and brings their
// answers back.
//
// It keeps which pods and containers the plugins know: those that existed when a plugin
// connected, and those whose first event was sent. Only these have later events, so nothing is
// reported twice or out of the blue, also after a restart: then every plugin connects anew.
package plugins

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/nri/convert"
	"github.com/berthrun/berth/internal/pod/record"
)

// Changer changes containers for plugins. It starts no job that it waits for, and sends no event.
type Changer interface {
	// UpdateLimits changes the limits that change has.
	UpdateLimits(ctx context.Context, id string, change *runtimeapi.LinuxContainerResources) error
	// Evict begins to stop a container, without a grace period.
	Evict(ctx context.Context, id, reason string) error
}

// Options are the parts that plugins see.
type Options struct {
	// Host is nil when NRI is off. Then all methods do nothing but what their callers hand in.
	Host    *nri.Host
	Engine  engine.Engine
	Records *record.Store
	Log     *slog.Logger
}

// Plugins reports to plugins. All methods are safe for concurrent use.
type Plugins struct {
	host    *nri.Host
	engine  engine.Engine
	records *record.Store
	log     *slog.Logger
	changer Changer
	// order has a lock for each container: its events come in their order.
	order      keyed.Mutex
	background sync.WaitGroup

	mu sync.Mutex
	// pods and containers are those that the plugins know.
	pods       map[string]*knownPod
	containers map[string]*knownContainer
}

type knownPod struct {
	// stopped is true once StopPodSandbox was sent.
	stopped bool
}

type knownContainer struct {
	// creating is the container while it is created: its record is hidden, and its spec not yet
	// in the engine.
	creating *api.Container
	// started is true once PostStartContainer was sent, or the plugins got the container as one that runs; ended
	// once StopContainer was sent.
	started, ended bool
}

// New returns Plugins. Events wait for Start.
func New(opts Options) *Plugins {
	return &Plugins{
		host: opts.Host, engine: opts.Engine, records: opts.Records, log: opts.Log,
		pods: map[string]*knownPod{}, containers: map[string]*knownContainer{},
	}
}

// Start starts plugins and lets them connect. The records are complete.
func (p *Plugins) Start(changer Changer) error {
	p.changer = changer
	if p.host == nil {
		return nil
	}
	return p.host.Start(p)
}

// Unblock lets events that wait for Start go on, which does not come.
func (p *Plugins) Unblock() {
	if p.host != nil {
		p.host.Unblock()
	}
}

// Close disconnects the plugins that Start started. No job runs any more.
func (p *Plugins) Close() {
	if p.host == nil {
		return
	}
	p.background.Wait()
	p.host.Close()
}

// Info describes the plugins, for people. Nil when NRI is off.
func (p *Plugins) Info() *nri.Info {
	if p.host == nil {
		return nil
	}
	return p.host.Info()
}

// Warnings are limits of NRI, for people.
func (p *Plugins) Warnings() []string {
	if info := p.Info(); info != nil && info.Warning != "" {
		return []string{info.Warning}
	}
	return nil
}

// Snapshot implements nri.Runtime. Exited containers are not listed, as plugins expect; their
// removal is reported. What is too long for a message is left out.
func (p *Plugins) Snapshot(context.Context) ([]*api.PodSandbox, []*api.Container) {
	pods, containers := p.snapshot()
	for _, left := range fit(pods, containers, maxSynchronize) {
		p.log.Warn("pods and containers do not fit into a message to NRI plugins: a plugin that connects does not get a long field",
			left.kind, left.id, "field", left.field, "bytes", left.bytes)
	}
	return pods, containers
}

func (p *Plugins) snapshot() ([]*api.PodSandbox, []*api.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pods []*api.PodSandbox
	for _, rec := range p.records.Sandboxes.All() {
		if !rec.Visible() && rec.State != record.SandboxRestoring { // plugins have got the event of one that is restored
			continue
		}
		if p.pods[rec.ID] == nil {
			p.pods[rec.ID] = &knownPod{stopped: rec.PluginsStopped}
		}
		pods = append(pods, p.pod(rec))
	}
	var containers []*api.Container
	for _, rec := range p.records.Containers.All() {
		known := p.containers[rec.ID]
		if !rec.Visible() {
			if known != nil && known.creating != nil {
				containers = append(containers, proto.CloneOf(known.creating)) // fit changes it
			}
			continue
		}
		if known == nil {
			known = &knownContainer{started: rec.State == record.ContainerRunning || rec.State == record.ContainerExited, ended: rec.State == record.ContainerExited}
			p.containers[rec.ID] = known
		}
		if rec.State != record.ContainerExited {
			containers = append(containers, p.container(rec))
		}
	}
	return pods, containers
}

// Update implements nri.Runtime.
func (p *Plugins) Update(ctx context.Context, update *api.ContainerUpdate) error {
	change, err := convert.Update(update.GetLinux().GetResources())
	if err != nil || change == nil {
		return err
	}
	return p.changer.UpdateLimits(ctx, update.GetContainerId(), change)
}

// Evict implements nri.Runtime.
func (p *Plugins) Evict(ctx context.Context, id, reason string) error {
	return p.changer.Evict(ctx, id, reason)
}

// hold is Host.Hold for what is only reported: nothing cancels it.
func (p *Plugins) hold(ctx context.Context) (active bool, release func()) {
	active, release, err := p.host.Hold(context.WithoutCancel(ctx))
	if err != nil {
		return false, func() {} // a context that never ends has no error
	}
	return active, release
}

// logged logs the failure of an event whose request goes on.
func (p *Plugins) logged(event, id string, err error) {
	if err != nil {
		p.log.Warn("an NRI plugin has refused what was done already", "event", event, "id", id, "error", err)
	}
}

// reporting adds what failed to the error of an event.
func reporting(what, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot report %s %q to NRI plugins: %w", what, id, err)
}

// protect runs fn, whose panic ends nothing else.
func (p *Plugins) protect(what string, fn func()) {
	p.background.Go(func() { errs.Protect(what, fn) })
}
