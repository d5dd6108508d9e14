package record

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/store"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Tombstones keep on disk the data of sandboxes and containers that is needed after a
// reboot, which removes the records: names, labels, annotations, times, codes, log
// paths, images. A tombstone is a record without all other fields (environments hold
// secrets). Tombstones are written in batches, outside of requests: a container that is
// created and removed within a batch never reaches the disk. Those of exited containers are
// durable at the end of their batch, and those of their sandboxes before: a sync for each pod
// that starts would slow down all starts.
type Tombstones struct {
	records *Store
	opts    TombstoneOptions

	// opening guards the tombstones, by the ids of their records; nil until the first need of
	// them. A start in the boot of the last one needs none before it answers requests.
	opening    sync.Mutex
	sandboxes  *store.Dir[Sandbox]
	containers *store.Dir[Container]

	// Tombstones were written since the last sync of their directory. Only flush uses them.
	unsyncedSandboxes, unsyncedContainers bool
	// durable has the sandboxes of exited containers. Only open and flush use it.
	durable map[string]struct{}

	mu      sync.Mutex
	touched map[string]struct{}
	wake    chan struct{}
}

// TombstoneOptions configure Tombstones.
type TombstoneOptions struct {
	// Dir is on disk and holds the tombstones.
	Dir string
	// Batch is how long changes are collected before they are written. Retry is the pause
	// before a write that failed is tried again.
	Batch, Retry time.Duration
}

// NewTombstones returns the tombstones of a directory. Start begins to write.
func NewTombstones(records *Store, opts TombstoneOptions) *Tombstones {
	return &Tombstones{records: records, opts: opts, touched: map[string]struct{}{}, wake: make(chan struct{}, 1)}
}

// open reads the tombstones that earlier daemons wrote, once.
func (t *Tombstones) open() error {
	t.opening.Lock()
	defer t.opening.Unlock()
	if t.containers != nil {
		return nil
	}
	durable := map[string]struct{}{}
	sandboxes, err := OpenDir(t.records, store.Options[Sandbox]{
		Path: filepath.Join(t.opts.Dir, "sandboxes"), Unsynced: true,
		Whole: func(rec *Sandbox) bool { _, yes := durable[rec.ID]; return yes },
	})
	if err != nil {
		return err
	}
	containers, err := OpenDir(t.records, store.Options[Container]{
		Path: filepath.Join(t.opts.Dir, "containers"), Group: (*Container).sandbox, Whole: (*Container).hasExited, Unsynced: true,
	})
	if err != nil {
		return err
	}
	for _, rec := range containers.All() {
		if rec.hasExited() {
			durable[rec.SandboxID] = struct{}{}
		}
	}
	t.sandboxes, t.containers, t.durable = sandboxes, containers, durable
	t.unsyncedSandboxes, t.unsyncedContainers = true, true // what a killed daemon wrote last may be
	return nil
}

// All returns all tombstones, in no order.
func (t *Tombstones) All() ([]*Sandbox, []*Container, error) {
	if err := t.open(); err != nil {
		return nil, nil, err
	}
	return t.sandboxes.All(), t.containers.All(), nil
}

// Touch is called when the record of a sandbox or a container was changed or removed. The
// next batch writes its tombstone.
func (t *Tombstones) Touch(id string) {
	t.mu.Lock()
	t.touched[id] = struct{}{}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // a batch is due already
	}
}

// Start writes batches until ctx ends, and then the last one.
func (t *Tombstones) Start(ctx context.Context, group *sync.WaitGroup) {
	group.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-t.wake:
			case <-ctx.Done():
			}
			select {
			case <-time.After(t.opts.Batch):
			case <-ctx.Done():
			}
			t.flush()
		}
	})
}

// Reconcile touches the tombstones that a killed process did not write: those without
// a record, those of sandboxes and running containers without a tombstone, and those of exited
// containers that do not say so.
func (t *Tombstones) Reconcile() {
	sandboxes, containers, err := t.All()
	if err != nil {
		t.records.log.Error("cannot read the tombstones", "error", err)
		return
	}
	written := map[string]ContainerState{}
	for _, old := range sandboxes {
		written[old.ID] = ""
	}
	for _, old := range containers {
		written[old.ID] = old.State
	}
	for _, rec := range t.records.Sandboxes.All() {
		if _, has := written[rec.ID]; rec.State == SandboxReady && !has {
			t.Touch(rec.ID)
		}
		delete(written, rec.ID)
	}
	for _, rec := range t.records.Containers.All() {
		old, has := written[rec.ID]
		if rec.State == ContainerRunning && !has || rec.State == ContainerExited && old != ContainerExited {
			t.Touch(rec.ID)
		}
		delete(written, rec.ID)
	}
	for id := range written {
		t.Touch(id)
	}
}

// flush writes the tombstones of touched records. It retries failed writes after a
// pause.
func (t *Tombstones) flush() {
	t.mu.Lock()
	batch := t.touched
	t.touched = map[string]struct{}{}
	t.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	failed := map[string]error{}
	if err := t.write(batch, failed); err != nil {
		for id := range batch {
			failed[id] = err
		}
	}
	for id, err := range failed {
		t.records.log.Error("cannot write tombstones; retrying",
			"tombstones", len(failed), "one", id, "error", err)
		break
	}
	if len(failed) > 0 {
		time.AfterFunc(t.opts.Retry, func() {
			for id := range failed {
				t.Touch(id)
			}
		})
	}
}

// write writes a batch. Errors of single tombstones go to failed; the returned one is that of the whole batch.
// A loss of power between two writes leaves no container without its sandbox.
func (t *Tombstones) write(batch map[string]struct{}, failed map[string]error) error {
	if err := t.open(); err != nil {
		return err
	}
	each := func(step func(id string) error) {
		for id := range batch {
			if err := errs.Guard("tombstone of "+id, func() error { return step(id) }); err != nil {
				failed[id] = err
			}
		}
	}
	t.missing(batch)
	each(t.writeSandbox)
	if err := syncOnce(t.sandboxes, &t.unsyncedSandboxes); err != nil {
		return err
	}
	each(t.writeContainer)
	if err := syncOnce(t.containers, &t.unsyncedContainers); err != nil {
		return err
	}
	each(t.deleteSandbox)
	return nil
}

// missing adds sandboxes of containers to a batch: those that have no tombstone yet, and those whose tombstone must be
// durable from now on, as a container has exited. After a loss of power nothing would remove a container without its sandbox.
func (t *Tombstones) missing(batch map[string]struct{}) {
	var sandboxes []string
	for id := range batch {
		rec, err := t.records.Containers.Get(id)
		if err != nil {
			continue
		}
		_, durable := t.durable[rec.SandboxID]
		if _, err := t.sandboxes.Get(rec.SandboxID); errors.Is(err, errs.NotFound) || rec.hasExited() && !durable {
			sandboxes = append(sandboxes, rec.SandboxID)
		}
		if rec.hasExited() {
			t.durable[rec.SandboxID] = struct{}{}
		}
	}
	for _, id := range sandboxes {
		batch[id] = struct{}{}
	}
}

// syncOnce makes durable what was written since the last sync, if anything was.
func syncOnce[T any](dir *store.Dir[T], unsynced *bool) error {
	if !*unsynced {
		return nil
	}
	err := dir.Sync()
	*unsynced = err != nil
	return err
}

// writeSandbox is for an id that may be a sandbox's.
func (t *Tombstones) writeSandbox(id string) error {
	rec, err := t.records.Sandboxes.Get(id)
	if err != nil {
		return nil //nolint:nilerr // deleteSandbox handles it
	}
	_, durable := t.durable[id]
	t.unsyncedSandboxes = t.unsyncedSandboxes || durable
	return put(t.sandboxes, id, rec.tombstone())
}

// deleteSandbox removes the tombstone of a sandbox that has gone, after those of its containers,
// which may be in the next batch.
func (t *Tombstones) deleteSandbox(id string) error {
	if _, err := t.records.Sandboxes.Get(id); err == nil {
		return nil
	}
	delete(t.durable, id)
	if _, err := t.sandboxes.Get(id); err != nil {
		return nil //nolint:nilerr // it has none
	}
	for _, rec := range t.containers.InGroup(id) {
		if err := t.containers.Delete(rec.ID); err != nil {
			return err
		}
	}
	return t.sandboxes.Delete(id)
}

// writeContainer is for an id that may be a container's.
func (t *Tombstones) writeContainer(id string) error {
	rec, err := t.records.Containers.Get(id)
	if err != nil {
		return t.containers.Delete(id)
	}
	if _, err := t.sandboxes.Get(rec.SandboxID); err != nil {
		if _, lost := t.records.Sandboxes.Get(rec.SandboxID); lost == nil {
			return fmt.Errorf("the tombstone of its sandbox is not written: %w", err)
		}
	}
	t.unsyncedContainers = t.unsyncedContainers || rec.hasExited()
	return put(t.containers, id, rec.tombstone())
}

// put makes or replaces a record.
func put[T any](dir *store.Dir[T], id string, value *T) error {
	_, err := dir.Update(id, func(v *T) error {
		*v = *value
		return nil
	})
	if errors.Is(err, errs.NotFound) {
		return dir.Create(id, value)
	}
	return err
}

func (r *Sandbox) tombstone() *Sandbox {
	t := *r
	config := r.Config.Get()
	short := &runtimeapi.PodSandboxConfig{
		Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		LogDirectory: config.GetLogDirectory(), Hostname: config.GetHostname(),
	}
	if ns := config.GetLinux().GetSecurityContext().GetNamespaceOptions(); ns != nil {
		short.Linux = &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: ns},
		}
	}
	t.Config, t.Engine, t.Network = store.MessageOf(short), nil, nil
	return &t
}

func (r *Container) tombstone() *Container {
	t := *r
	config := r.Config.Get()
	t.Config = store.MessageOf(&runtimeapi.ContainerConfig{
		Metadata: config.GetMetadata(), Image: config.GetImage(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		LogPath: config.GetLogPath(), Tty: config.GetTty(), StopSignal: config.GetStopSignal(),
	})
	t.Stop, t.Pid = nil, 0
	return &t
}
