package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/store"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer makes a container in a READY sandbox, or joins the job that
// does; see RunSandbox.
func (s *Service) CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig) (id string, err error) {
	sb, err := s.readySandbox(sandboxID)
	if err != nil {
		return "", fmt.Errorf("cannot create container: %w", err)
	}
	if err := s.opts.Engine.CheckContainer(config, sb.Config.Get()); err != nil {
		return "", err
	}
	rec := &ContainerRecord{
		ID: newID(), SandboxID: sb.ID, Boot: s.opts.BootID, State: ContainerCreating, CreatedAt: now(),
		Config: store.MessageOf(config), LogPath: containerLogPath(sb.Config.Get(), config),
	}
	id, err = s.jobs.Do(ctx, &job.Request{
		Key: rec.name(), ID: rec.ID, Kind: kindCreate, Want: rec.request(),
		Run: func(ctx context.Context, j *job.Job) (string, error) { return s.createContainer(ctx, j, *rec) },
	})
	var volumeErr *engine.VolumeError
	if errors.As(err, &volumeErr) {
		err = fmt.Errorf("%s: %w", imageVolumeFailed, err)
	}
	return id, err
}

// imageVolumeFailed is how a kubelet knows the error of an image that could not be
// mounted: the text begins with it (ErrImageVolumeMountFailed in k8s.io/cri-api).
const imageVolumeFailed = "ImageVolumeMountFailed"

// createContainer is the order of steps; see runSandbox.
func (s *Service) createContainer(ctx context.Context, j *job.Job, rec ContainerRecord) (id string, err error) {
	if id, err = s.containerOfName(ctx, j, &rec); id != "" || err != nil {
		return id, err
	}
	j.Stage("find image", "the image store")
	img, err := callFor(ctx, s.calls, rec.ID, "find image", func(ctx context.Context) (*image.Image, error) {
		return s.findImage(ctx, rec.Config.Get().GetImage())
	})
	if errors.Is(err, errs.Invalid) {
		err = fmt.Errorf("config.image.image: %w", err)
	}
	if err != nil {
		return "", err
	}
	rec.Image = snapshot(img)
	if err = s.findVolumeImages(ctx, &rec); err != nil {
		return "", err
	}
	j.Stage("write record", "the state directory")
	if err = s.containers.Create(rec.ID, &rec); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = s.abandonContainer(ctx, j, rec.ID, err)
		}
	}()
	if err = errs.Guard("creation of container "+rec.ID, func() error { return s.makeContainer(ctx, j, &rec, img) }); err != nil {
		return "", err
	}
	return rec.ID, nil
}

// makeContainer is what follows the record, which the caller undoes.
func (s *Service) makeContainer(ctx context.Context, j *job.Job, rec *ContainerRecord, img *image.Image) error {
	// Looked at again after the record is written: who stops the sandbox now
	// either was first, and is seen here, or finds the record and this job.
	sb, err := s.readySandbox(rec.SandboxID)
	if err != nil {
		return fmt.Errorf("cannot create container: %w", err)
	}
	spec, err := s.containerSpec(rec, sb, img)
	if err != nil {
		return err
	}
	spec.Stage = j.Stage
	j.Stage("create container", "the engine")
	made, err := callFor(ctx, s.calls, rec.ID, "create container "+rec.ID, func(ctx context.Context) (*engine.Container, error) {
		return s.opts.Engine.Create(ctx, spec)
	})
	if err != nil {
		return err
	}
	if err = s.checkTarget(ctx, rec.Config.Get()); err != nil {
		return err
	}
	j.Stage("publish", "the state directory")
	if ctx.Err() != nil {
		return fmt.Errorf("cannot publish container: %w", context.Cause(ctx))
	}
	if _, err = s.containers.Update(rec.ID, func(r *ContainerRecord) error {
		r.State, r.Engine = ContainerCreated, made
		return nil
	}); err != nil {
		return err
	}
	s.log.Info("container is created", "container", rec.ID, "sandbox", rec.SandboxID, "name", rec.Config.Get().GetMetadata().GetName(), "took", j.Info().Age)
	return nil
}

// containerOfName is sandboxOfName for containers.
func (s *Service) containerOfName(ctx context.Context, j *job.Job, rec *ContainerRecord) (string, error) {
	id, old, taken := s.containers.ByName(rec.name())
	if !taken {
		return "", nil
	}
	differs := job.Difference(old.request(), rec.request())
	switch {
	case old.Removing || old.State == ContainerCreating:
		j.Stage("remove what an earlier attempt left", "its teardown")
		if err := s.teardownContainer(ctx, j, id); err != nil {
			return "", fmt.Errorf("cannot remove container %q, which an earlier attempt left under the same name: %w", id, err)
		}
		return "", nil
	case differs != "":
		return "", fmt.Errorf("container %q has the name %s and another %s: %w", id, rec.name(), differs, errs.Exists)
	case old.State == ContainerCreated && old.Stop == nil:
		return id, nil
	default:
		return "", fmt.Errorf("container %q has the name %s and is %s; remove it or ask for the next attempt: %w", id, rec.name(), old.State, errs.Exists)
	}
}

// abandonContainer is abandonSandbox for containers. What cannot be torn down
// shows as one that failed to start.
func (s *Service) abandonContainer(ctx context.Context, j *job.Job, id string, cause error) error {
	if errors.Is(context.Cause(ctx), job.ErrShutdown) {
		return fmt.Errorf("%w: %w", job.ErrShutdown, cause)
	}
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = fmt.Errorf("%w: %w", context.Cause(ctx), cause)
	}
	err := s.teardownContainer(ctx, j, id)
	if err == nil {
		return cause
	}
	_, updateErr := s.containers.Update(id, func(r *ContainerRecord) error {
		r.Removing = true
		r.exit(time.Now(), engine.CodeStartError, engine.ReasonStartError, fmt.Sprintf("it could not be made (%v) and is being removed (%v)", cause, err))
		return nil
	})
	s.retryContainer(ctx, id)
	return errors.Join(cause, err, errs.IgnoreNotFound(updateErr))
}

// readySandbox finds a sandbox that may have new containers.
func (s *Service) readySandbox(id string) (*SandboxRecord, error) {
	sb, err := s.sandbox(id)
	if err != nil {
		return nil, err
	}
	if sb.State != SandboxReady {
		return nil, fmt.Errorf("sandbox %q is not ready (%s): %w", sb.ID, sb.State, errs.State)
	}
	return sb, nil
}

func (s *Service) findImage(ctx context.Context, spec *runtimeapi.ImageSpec) (*image.Image, error) {
	img, err := s.opts.Images.Get(ctx, spec.GetImage())
	if errors.Is(err, errs.NotFound) {
		name := spec.GetUserSpecifiedImage()
		if name == "" || name == spec.GetImage() {
			return nil, fmt.Errorf("image %q is not on this node; pull it first: %w", spec.GetImage(), errs.NotFound)
		}
		return nil, fmt.Errorf("image %q (%s) is not on this node; pull it first: %w", spec.GetImage(), name, errs.NotFound)
	}
	return img, err
}

// findVolumeImages sets the ids and references of the images that the request mounts, by the
// mount's index.
func (s *Service) findVolumeImages(ctx context.Context, rec *ContainerRecord) error {
	for i, m := range rec.Config.Get().GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		img, err := callFor(ctx, s.calls, rec.ID, "find a volume's image", func(ctx context.Context) (*image.Image, error) {
			return s.findImage(ctx, m.GetImage())
		})
		if err != nil {
			return &engine.VolumeError{Err: fmt.Errorf("config.mounts[%d].image.image: %w", i, err)}
		}
		if rec.VolumeImages == nil {
			rec.VolumeImages, rec.VolumeRefs = map[int]string{}, map[int]string{}
		}
		rec.VolumeImages[i], rec.VolumeRefs[i] = img.ID, snapshot(img).Ref
	}
	return nil
}

func snapshot(img *image.Image) ImageSnapshot {
	snap := ImageSnapshot{ID: img.ID, Ref: img.ID, StopSignal: img.Config.StopSignal}
	if len(img.Digests) > 0 {
		snap.Ref = img.Digests[0]
	}
	if len(img.Tags) > 0 {
		snap.Name = img.Tags[0]
	}
	return snap
}

func (s *Service) containerSpec(rec *ContainerRecord, sb *SandboxRecord, img *image.Image) (*engine.ContainerSpec, error) {
	spec := &engine.ContainerSpec{
		ID: rec.ID, SandboxSpec: s.sandboxSpec(sb), Sandbox: sb.Engine, Config: rec.Config.Get(),
		VolumeImages: rec.VolumeImages,
		ImageID:      img.ID, ImageConfig: img.Config, LogPath: rec.LogPath,
		Dir: filepath.Join(s.opts.RootDir, "containers", rec.ID),
	}
	ns := rec.Config.Get().GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return spec, nil
	}
	target, err := s.container(ns.GetTargetId())
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", targetField, err)
	case target.SandboxID != rec.SandboxID:
		return nil, fmt.Errorf("%s: container %q is in another sandbox: %w", targetField, target.ID, errs.Invalid)
	case target.State != ContainerRunning:
		return nil, fmt.Errorf("%s: container %q does not run: %w", targetField, target.ID, errs.State)
	}
	spec.TargetID, spec.TargetPID = target.ID, target.Pid
	return spec, nil
}

const targetField = "config.linux.security_context.namespace_options.target_id"

// checkTarget refuses a container whose target has ended while it was made: the number of
// the target's process may have been another's by the time that it was joined.
func (s *Service) checkTarget(ctx context.Context, config *runtimeapi.ContainerConfig) error {
	ns := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return nil
	}
	target, err := s.container(ns.GetTargetId())
	if err != nil {
		return fmt.Errorf("%s: %w", targetField, err)
	}
	ended, err := s.gone(ctx, target.ID)
	if err != nil {
		return fmt.Errorf("%s: cannot tell whether container %q still runs: %w", targetField, target.ID, err)
	}
	if ended {
		return fmt.Errorf("%s: container %q has ended meanwhile: %w", targetField, target.ID, errs.State)
	}
	return nil
}

// containerLogPath joins the sandbox's log directory and the container's path in it, "" for no
// log. Package cri/shape has checked both.
func containerLogPath(sb *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig) string {
	dir, path := sb.GetLogDirectory(), config.GetLogPath()
	if dir == "" || path == "" {
		return ""
	}
	return filepath.Join(dir, path)
}
