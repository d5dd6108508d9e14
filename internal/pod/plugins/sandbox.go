package plugins

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nri/convert"
	"github.com/berthrun/berth/internal/pod/record"
)

// RunSandbox sends RunPodSandbox and then calls publish, which makes the record ready. rec has
// what publish will record. An error is a plugin's, or that of publish.
func (p *Plugins) RunSandbox(ctx context.Context, rec *record.Sandbox, publish func() error) error {
	if p.host == nil {
		return publish()
	}
	active, release, err := p.host.Hold(ctx)
	if err != nil {
		return reporting("sandbox", rec.ID, err)
	}
	defer release()
	if active {
		p.mu.Lock()
		p.pods[rec.ID] = &knownPod{} // before the event: some plugins may know it even if others refuse it
		p.mu.Unlock()
		if err := p.host.RunPodSandbox(ctx, p.pod(rec)); err != nil {
			return err
		}
	}
	return publish()
}

// StopSandbox sends StopPodSandbox, once, for a sandbox whose containers have ended. The record
// keeps that it was sent, for a stop that continues after a restart.
func (p *Plugins) StopSandbox(ctx context.Context, id string) {
	if p.host == nil {
		return
	}
	rec, err := p.records.Sandboxes.Get(id)
	if err != nil {
		return // it was removed, which is reported
	}
	for _, c := range p.records.Containers.InGroup(id) {
		if !c.Alive() {
			p.endContainer(ctx, c)
		}
	}
	active, release := p.hold(ctx)
	defer release()
	if !active || !p.stopPod(id) {
		return
	}
	if _, err := p.records.Sandboxes.Update(id, func(r *record.Sandbox) error {
		r.PluginsStopped = true
		return nil
	}); errs.IgnoreNotFound(err) != nil {
		p.log.Warn("cannot record that NRI plugins know of a sandbox's stop", "sandbox", id, "error", err)
	}
	p.logged("StopPodSandbox", id, p.host.StopPodSandbox(context.WithoutCancel(ctx), p.pod(rec)))
}

// stopPod reports whether the plugins know a pod and not its stop, which they know from now on.
func (p *Plugins) stopPod(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.pods[id]
	if known == nil || known.stopped {
		return false
	}
	known.stopped = true
	return true
}

// RemoveSandbox calls remove, which deletes the record, and sends RemovePodSandbox. An error is
// that of remove.
func (p *Plugins) RemoveSandbox(ctx context.Context, id string, remove func() error) error {
	if p.host == nil {
		return remove()
	}
	rec, err := p.records.Sandboxes.Get(id)
	if err != nil {
		return remove()
	}
	active, release := p.hold(ctx)
	defer release()
	if err := remove(); err != nil {
		return err
	}
	p.mu.Lock()
	known := p.pods[id] != nil
	delete(p.pods, id)
	p.mu.Unlock()
	if active && known {
		p.logged("RemovePodSandbox", id, p.host.RemovePodSandbox(context.WithoutCancel(ctx), p.pod(rec)))
	}
	return nil
}

// UpdateSandbox sends UpdatePodSandbox with the limits of a request. An error is a plugin's.
func (p *Plugins) UpdateSandbox(ctx context.Context, rec *record.Sandbox, overhead, limits *runtimeapi.LinuxContainerResources) error {
	if p.host == nil {
		return nil
	}
	active, release, err := p.host.Hold(ctx)
	if err != nil {
		return reporting("sandbox", rec.ID, err)
	}
	defer release()
	if !active {
		return nil
	}
	return p.host.UpdatePodSandbox(ctx, p.pod(rec), convert.Resources(overhead), convert.Resources(limits))
}

// UpdatedSandbox sends PostUpdatePodSandbox.
func (p *Plugins) UpdatedSandbox(ctx context.Context, rec *record.Sandbox) {
	if p.host == nil {
		return
	}
	active, release := p.hold(ctx)
	defer release()
	if active {
		p.logged("PostUpdatePodSandbox", rec.ID, p.host.PostUpdatePodSandbox(context.WithoutCancel(ctx), p.pod(rec)))
	}
}
