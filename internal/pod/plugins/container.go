package plugins

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/nri/convert"
	"github.com/berthrun/berth/internal/pod/record"
)

// Adjustment is what plugins change of a container that is created.
type Adjustment struct {
	plugins *Plugins
	sandbox *record.Sandbox
	rec     *record.Container
	limits  *runtimeapi.LinuxContainerResources
}

// Adjustment returns the adjustment of a container. Nil when NRI is off.
func (p *Plugins) Adjustment(rec *record.Container, sandbox *record.Sandbox) *Adjustment {
	if p.host == nil {
		return nil
	}
	return &Adjustment{plugins: p, sandbox: sandbox, rec: rec}
}

// Limits are the limits that plugins have set and that the container's status shows, nil for none.
func (a *Adjustment) Limits() *runtimeapi.LinuxContainerResources {
	if a == nil {
		return nil
	}
	return a.limits
}

// Apply sends CreateContainer and applies the answer to the container's spec; see
// engine.ContainerSpec.
func (a *Adjustment) Apply(ctx context.Context, spec *specs.Spec, names *engine.Names) error {
	others, err := a.apply(ctx, spec, names)
	if err != nil {
		return err
	}
	a.plugins.host.Do(ctx, others)
	return nil
}

func (a *Adjustment) apply(ctx context.Context, spec *specs.Spec, names *engine.Names) (others nri.Others, err error) {
	p := a.plugins
	active, release, err := p.host.Hold(ctx)
	if err != nil {
		return others, reporting("container", a.rec.ID, err)
	}
	defer release()
	// Also without a plugin: one that connects before the container's record is visible learns of
	// the container from here.
	container := p.describe(a.rec, spec)
	p.setCreating(a.rec.ID, container)
	if !active {
		return others, nil
	}
	created, err := p.host.CreateContainer(ctx, p.pod(a.sandbox), container)
	if err != nil {
		return others, err
	}
	if created.Adjust == nil {
		return created.Others, nil
	}
	if err := convert.Adjust(spec, created.Adjust, convert.Names(*names)); err != nil {
		return others, fmt.Errorf("cannot apply what NRI plugins have adjusted: %w", err)
	}
	if limits := created.Adjust.GetLinux().GetResources(); limits != nil {
		a.limits = convert.Limits(limits)
	}
	p.setCreating(a.rec.ID, p.describe(a.rec, spec))
	return created.Others, nil
}

func (p *Plugins) setCreating(id string, container *api.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.containers[id] = &knownContainer{creating: container}
}

// forget forgets a container that has a visible record or none, while no plugin is connected. The
// caller holds.
func (p *Plugins) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.containers, id)
}

// CreatedContainer sends PostCreateContainer for a container whose record is published.
func (p *Plugins) CreatedContainer(ctx context.Context, rec *record.Container) {
	if p.host == nil {
		return
	}
	active, release := p.hold(ctx)
	defer release()
	if !active {
		p.forget(rec.ID)
		return
	}
	p.mu.Lock()
	known := p.containers[rec.ID]
	if known != nil {
		known.creating = nil
	}
	p.mu.Unlock()
	if known != nil {
		p.logged("PostCreateContainer", rec.ID, p.host.PostCreateContainer(context.WithoutCancel(ctx), p.podOf(rec), p.container(rec)))
	}
}

// StartContainer sends StartContainer. When it has no error, the caller calls started once the
// start has succeeded or failed, with the record after a success and nil otherwise; it sends
// PostStartContainer. The exit of the container is reported after that.
func (p *Plugins) StartContainer(ctx context.Context, rec *record.Container) (started func(*record.Container), err error) {
	if p.host == nil {
		return func(*record.Container) {}, nil
	}
	unlock, err := p.order.Lock(ctx, rec.ID)
	if err != nil {
		return nil, reporting("container", rec.ID, err)
	}
	if p.knows(rec.ID) {
		if err := p.host.StartContainer(ctx, p.podOf(rec), p.container(rec)); err != nil {
			unlock()
			return nil, err
		}
	}
	return func(running *record.Container) {
		defer unlock()
		if running == nil {
			return
		}
		// A plugin may have connected meanwhile, and know the container as one that is only created.
		_, release := p.hold(ctx)
		defer release()
		if p.startKnown(rec.ID) {
			p.logged("PostStartContainer", rec.ID, p.host.PostStartContainer(context.WithoutCancel(ctx), p.podOf(running), p.container(running)))
		}
	}, nil
}

// startKnown reports whether the plugins know a container and not that it has started, which they know from now
// on.
func (p *Plugins) startKnown(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.containers[id]
	if known == nil || known.started {
		return false
	}
	known.started = true
	return true
}

// ContainerEnded sends StopContainer for a container whose exit is recorded. It does not wait.
func (p *Plugins) ContainerEnded(rec *record.Container) {
	if p.host != nil && p.knows(rec.ID) {
		p.protect("StopContainer of "+rec.ID, func() { p.endContainer(context.Background(), rec) })
	}
}

// endContainer sends StopContainer, once, and makes the changes that plugins answer with.
func (p *Plugins) endContainer(ctx context.Context, rec *record.Container) {
	ctx = context.WithoutCancel(ctx)
	unlock, err := p.order.Lock(ctx, rec.ID)
	if err != nil {
		return // a context that never ends has no error
	}
	defer unlock()
	active, release := p.hold(ctx)
	if !active {
		p.forget(rec.ID) // a plugin that connects later does not get an end that it has missed
		release()
		return
	}
	if !p.endKnown(rec.ID) {
		release()
		return
	}
	others, err := p.host.StopContainer(ctx, p.podOf(rec), p.container(rec))
	release()
	p.logged("StopContainer", rec.ID, err)
	p.host.Do(ctx, others)
}

// endKnown reports whether the plugins know a container and not its end, which they know from
// now on.
func (p *Plugins) endKnown(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.containers[id]
	if known == nil || known.ended {
		return false
	}
	known.ended = true
	return true
}

func (p *Plugins) knows(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.containers[id] != nil
}

// RemoveContainer calls remove, which deletes the record, and sends RemoveContainer, after
// StopContainer where that was not sent. An error is that of remove.
func (p *Plugins) RemoveContainer(ctx context.Context, rec *record.Container, remove func() error) error {
	if p.host == nil {
		return remove()
	}
	if p.knows(rec.ID) {
		p.endContainer(ctx, rec)
	}
	active, release := p.hold(ctx) // also for one that no plugin knows: one that is being synchronized may learn of it now
	defer release()
	if !active {
		p.forget(rec.ID)
		return remove()
	}
	if !p.knows(rec.ID) {
		return remove()
	}
	pod, container := p.podOf(rec), p.container(rec)
	if err := remove(); err != nil {
		return err
	}
	p.mu.Lock()
	known := p.containers[rec.ID] != nil
	delete(p.containers, rec.ID)
	p.mu.Unlock()
	if known {
		p.logged("RemoveContainer", rec.ID, p.host.RemoveContainer(context.WithoutCancel(ctx), pod, container))
	}
	return nil
}

// UpdateContainer sends UpdateContainer with the limits that a request changes, and returns those
// that plugins make of them. An error is a plugin's.
func (p *Plugins) UpdateContainer(ctx context.Context, rec *record.Container, change *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, error) {
	if p.host == nil {
		return change, nil
	}
	active, release, err := p.host.Hold(ctx)
	if err != nil {
		return nil, reporting("container", rec.ID, err)
	}
	if !active || !p.knows(rec.ID) {
		release()
		return change, nil
	}
	limits, others, err := p.host.UpdateContainer(ctx, p.podOf(rec), p.container(rec), convert.Resources(change))
	release()
	if err != nil {
		return nil, err
	}
	p.host.Do(ctx, others)
	changed, err := convert.Update(limits)
	if err != nil {
		return nil, fmt.Errorf("cannot apply what NRI plugins have made of the update: %w", err)
	}
	if changed == nil {
		return change, nil
	}
	changed.OomScoreAdj = change.GetOomScoreAdj()
	return changed, nil
}

// UpdatedContainer sends PostUpdateContainer.
func (p *Plugins) UpdatedContainer(ctx context.Context, rec *record.Container) {
	if p.host == nil {
		return
	}
	active, release := p.hold(ctx)
	defer release()
	if active && p.knows(rec.ID) {
		p.logged("PostUpdateContainer", rec.ID, p.host.PostUpdateContainer(context.WithoutCancel(ctx), p.podOf(rec), p.container(rec)))
	}
}
