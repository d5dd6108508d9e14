package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/podnet"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandboxes runs, updates, stops and removes sandboxes, each by a job.
type Sandboxes struct {
	*worker
	containers *Containers
	network    *podnet.Attachments
	// platforms are those of new sandboxes' images, by their handlers.
	platforms func() map[string]string
}

// RunSandbox makes a sandbox READY, or joins the job that does. The job outlives
// the request; a request with the same config joins it or gets its result.
func (s *Sandboxes) RunSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (id string, err error) {
	if err := s.engine.CheckSandbox(config); err != nil {
		return "", err
	}
	if err := podnet.Check(config); err != nil {
		return "", err
	}
	rec := &record.Sandbox{
		ID: newID(), Boot: s.bootID, State: record.SandboxCreating, CreatedAt: now(), Handler: handler,
		Config: store.MessageOf(config), Platform: s.platforms()[handler],
	}
	return s.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindRun, Want: rec.Request(),
		Run: func(ctx context.Context, j *job.Job) (string, error) { return s.runSandbox(ctx, j, rec) },
	})
}

// runSandbox has the steps in their order. READY is the last one. When a step fails,
// teardown undoes them all; it needs only the record.
func (s *Sandboxes) runSandbox(ctx context.Context, j *job.Job, rec *record.Sandbox) (id string, err error) {
	if id, err = s.sandboxOfName(ctx, j, rec); id != "" || err != nil {
		return id, err
	}
	j.Stage("write record", "the state directory")
	if err = s.records.Sandboxes.Create(rec.ID, rec); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = s.abandonSandbox(ctx, j, rec.ID, err)
		}
	}()
	if err = errs.Guard("run of sandbox "+rec.ID, func() error { return s.makeSandbox(ctx, j, rec, record.SandboxReady) }); err != nil {
		return "", err
	}
	return rec.ID, nil
}

// makeSandbox does the steps after the record. The caller undoes them. to is SandboxReady, or SandboxRestoring for a sandbox
// that stays hidden.
func (s *Sandboxes) makeSandbox(ctx context.Context, j *job.Job, rec *record.Sandbox, to record.SandboxState) error {
	spec := s.records.SandboxSpec(rec)
	j.Stage("create sandbox", "the engine")
	sb, err := call.Get(ctx, s.calls, rec.ID, "create sandbox", func(ctx context.Context) (*engine.Sandbox, error) {
		return s.engine.CreateSandbox(ctx, spec)
	})
	if err != nil {
		return err
	}
	result, err := s.network.Attach(ctx, j.Stage, rec, sb)
	if err != nil {
		return err
	}
	j.Stage("start sandbox", "the engine")
	made := *rec
	made.Network = result
	made.Engine, err = call.Get(ctx, s.calls, rec.ID, "start sandbox", func(ctx context.Context) (*engine.Sandbox, error) {
		return s.engine.StartSandbox(ctx, spec, sb)
	})
	if err != nil {
		return err
	}
	j.Stage("ask plugins", "the NRI plugins")
	if err := s.plugins.RunSandbox(ctx, &made, func() error {
		j.Stage("publish", "the state directory")
		if ctx.Err() != nil {
			return fmt.Errorf("cannot publish sandbox: %w", context.Cause(ctx))
		}
		_, err := s.records.Sandboxes.Update(rec.ID, func(r *record.Sandbox) error {
			if r.Message != "" {
				return fmt.Errorf("%s: %w", r.Message, errs.Unavailable)
			}
			r.State, r.Engine, r.Network = to, made.Engine, made.Network
			return nil
		})
		return err
	}); err != nil {
		return err
	}
	if to == record.SandboxReady {
		s.logReady(j, rec)
	}
	return nil
}

func (s *Sandboxes) logReady(j *job.Job, rec *record.Sandbox) {
	s.tombstones.Touch(rec.ID)
	s.log.Info("sandbox is ready", "sandbox", rec.ID, "pod", rec.Name(), "took", j.Info().Age)
}

// sandboxOfName decides about an earlier sandbox of the same name: it returns the
// id when that sandbox matches the request, refuses, or, when the removal of that
// sandbox has failed so far, removes it now.
//
// One that has containers is refused: an earlier request got its id and created them. The
// caller does not know of it yet, such as a kubelet that has just started, and would create
// the containers a second time.
func (s *Sandboxes) sandboxOfName(ctx context.Context, j *job.Job, rec *record.Sandbox) (string, error) {
	id, old, taken := s.records.Sandboxes.ByName(rec.Name())
	if !taken {
		return "", nil
	}
	differs := job.Difference(old.SameRequest(rec))
	switch {
	case old.State == record.SandboxReady && differs == "":
		if containers := s.records.ContainersOf(id); len(containers) > 0 {
			return "", fmt.Errorf("sandbox %q has the name %s, is ready and has containers (%s); use it, remove it or ask for the next attempt: %w",
				id, rec.Name(), strings.Join(containers, ", "), errs.Exists)
		}
		return id, nil
	case old.State == record.SandboxReady:
		return "", fmt.Errorf("sandbox %q has the name %s and another %s: %w", id, rec.Name(), differs, errs.Exists)
	case !old.Visible() || old.State == record.SandboxRemoving:
		j.Stage("remove what an earlier attempt left", "its teardown")
		if err := s.teardown(ctx, j, id, record.SandboxRemoving); err != nil {
			return "", fmt.Errorf("cannot remove sandbox %q, which an earlier attempt left under the same name: %w", id, err)
		}
		return "", nil
	default:
		return "", fmt.Errorf("sandbox %q has the name %s and is stopped; remove it or ask for the next attempt: %w", id, rec.Name(), errs.Exists)
	}
}

// abandonSandbox tears down the sandbox of a failed or cancelled job and returns the
// job's error. A sandbox that cannot be torn down now is shown as NOTREADY, and its
// teardown is retried.
func (s *Sandboxes) abandonSandbox(ctx context.Context, j *job.Job, id string, cause error) error {
	j.StageFailed(cause)
	if errors.Is(context.Cause(ctx), job.ErrShutdown) {
		return fmt.Errorf("%w: %w", job.ErrShutdown, cause) // the next start finds the record and tears down
	}
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = fmt.Errorf("%w: %w", context.Cause(ctx), cause)
	}
	err := s.teardown(ctx, j, id, record.SandboxRemoving)
	if err == nil {
		return cause
	}
	_, updateErr := s.records.Sandboxes.Update(id, func(r *record.Sandbox) error {
		r.State, r.Message = record.SandboxRemoving, fmt.Sprintf("it could not be created (%v) and is being removed (%v)", cause, err)
		return nil
	})
	s.retrySandbox(ctx, id)
	return errors.Join(cause, err, errs.IgnoreNotFound(updateErr))
}
