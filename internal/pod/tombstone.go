package pod

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/store"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// tombstones keep on disk what must be known of sandboxes and containers after a
// reboot has taken the records: names, labels, annotations, times, codes, log
// paths, images. A tombstone is a record with all else cut away (environments
// hold secrets). It follows its record in batches, off every request's path: a
// container that comes and goes within a batch never reaches the disk, and one
// that has exited is synced.
type tombstones struct {
	service    *Service
	sandboxes  *store.Dir[SandboxRecord]
	containers *store.Dir[ContainerRecord]

	mu      sync.Mutex
	touched map[string]struct{}
	wake    chan struct{}
}

func openTombstones(s *Service, path, quarantine string) (*tombstones, error) {
	t := &tombstones{service: s, touched: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	var err error
	if t.sandboxes, err = openDir(s, store.Options[SandboxRecord]{Path: filepath.Join(path, "sandboxes"), Quarantine: quarantine}); err != nil {
		return nil, err
	}
	t.containers, err = openDir(s, store.Options[ContainerRecord]{Path: filepath.Join(path, "containers"), Quarantine: quarantine})
	return t, err
}

// touch says that the record of a sandbox or a container has changed or gone.
func (t *tombstones) touch(id string) {
	t.mu.Lock()
	t.touched[id] = struct{}{}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // a batch is on its way
	}
}

// start writes batches until ctx ends, and then the last one.
func (t *tombstones) start(ctx context.Context, group *sync.WaitGroup) {
	group.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-t.wake:
			case <-ctx.Done():
			}
			select {
			case <-time.After(t.service.limits.Batch):
			case <-ctx.Done():
			}
			t.flush()
		}
	})
}

// reconcile touches what a killed process had no time to write: tombstones
// without a record, and sandboxes and running containers without a tombstone.
func (t *tombstones) reconcile() {
	buried := map[string]bool{}
	for _, id := range append(t.sandboxes.IDs(), t.containers.IDs()...) {
		buried[id] = true
	}
	for _, rec := range t.service.sandboxes.All() {
		if rec.State == SandboxReady && !buried[rec.ID] {
			t.touch(rec.ID)
		}
		delete(buried, rec.ID)
	}
	for _, rec := range t.service.containers.All() {
		if rec.State == ContainerRunning && !buried[rec.ID] {
			t.touch(rec.ID)
		}
		delete(buried, rec.ID)
	}
	for id := range buried {
		t.touch(id)
	}
}

// flush brings the tombstones of what was touched into line with the records.
// What cannot be written is tried again after a pause.
func (t *tombstones) flush() {
	t.mu.Lock()
	batch := t.touched
	t.touched = map[string]struct{}{}
	t.mu.Unlock()
	failed := map[string]error{}
	// A loss of power between two writes leaves no container without its sandbox.
	for _, step := range []func(id string) error{t.bury, t.buryContainer, t.forget} {
		for id := range batch {
			if err := errs.Guard("tombstone of "+id, func() error { return step(id) }); err != nil {
				failed[id] = err
			}
		}
	}
	for id, err := range failed {
		t.service.log.Error("cannot write tombstones, will try again", "tombstones", len(failed), "one", id, "err", err)
		break
	}
	if len(failed) > 0 {
		time.AfterFunc(t.service.limits.RetryMin, func() {
			for id := range failed {
				t.touch(id)
			}
		})
	}
}

// bury is for an id that may be a sandbox's.
func (t *tombstones) bury(id string) error {
	rec, err := t.service.sandboxes.Get(id)
	if err != nil {
		return nil //nolint:nilerr // forget sees to it
	}
	return put(t.sandboxes, id, rec.tombstone())
}

// forget removes the tombstone of a sandbox that has gone, after those of its containers,
// which may be in the next batch.
func (t *tombstones) forget(id string) error {
	if _, err := t.service.sandboxes.Get(id); err == nil {
		return nil
	}
	if _, err := t.sandboxes.Get(id); err != nil {
		return nil //nolint:nilerr // it has none
	}
	for _, rec := range t.containers.All() {
		if rec.SandboxID != id {
			continue
		}
		if err := t.containers.Delete(rec.ID); err != nil {
			return err
		}
	}
	return t.sandboxes.Delete(id)
}

// buryContainer is for an id that may be a container's.
func (t *tombstones) buryContainer(id string) error {
	rec, err := t.service.containers.Get(id)
	if err != nil {
		return t.containers.Delete(id)
	}
	if err := put(t.containers, id, rec.tombstone()); err != nil || rec.State != ContainerExited {
		return err
	}
	return t.containers.Sync(id)
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

func (r *SandboxRecord) tombstone() *SandboxRecord {
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

func (r *ContainerRecord) tombstone() *ContainerRecord {
	t := *r
	config := r.Config.Get()
	t.Config = store.MessageOf(&runtimeapi.ContainerConfig{
		Metadata: config.GetMetadata(), Image: config.GetImage(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		LogPath: config.GetLogPath(), Tty: config.GetTty(), StopSignal: config.GetStopSignal(),
	})
	t.Stop, t.Pid = nil, 0
	return &t
}
