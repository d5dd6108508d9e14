package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/exits"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/plugins"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Containers creates, starts, updates, stops and removes containers, each by a job.
type Containers struct {
	*worker
	images Images
	exits  *exits.Recorder
	graces gracePeriods
}

// CreateContainer creates a container in a READY sandbox, or joins the job that
// does; see RunSandbox.
func (c *Containers) CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig) (id string, err error) {
	sb, err := c.records.ReadySandbox(sandboxID)
	if err != nil {
		return "", fmt.Errorf("cannot create container: %w", err)
	}
	if err := c.engine.CheckContainer(config, sb.Config.Get()); err != nil {
		return "", err
	}
	rec := c.newRecord(sb, config)
	id, err = c.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindCreate, Want: rec.Request(),
		Run: func(ctx context.Context, j *job.Job) (string, error) { return c.createContainer(ctx, j, *rec) },
	})
	var volumeErr *engine.VolumeError
	if errors.As(err, &volumeErr) {
		err = fmt.Errorf("%s: %w", imageVolumeFailed, err)
	}
	return id, err
}

// newRecord is the record of a container before it is made.
func (c *Containers) newRecord(sb *record.Sandbox, config *runtimeapi.ContainerConfig) *record.Container {
	return &record.Container{
		ID: newID(), SandboxID: sb.ID, Boot: c.bootID, State: record.ContainerCreating, CreatedAt: now(),
		Config: store.MessageOf(config), LogPath: containerLogPath(sb.Config.Get(), config),
	}
}

// imageVolumeFailed is the prefix by which a kubelet recognizes the error of an image that
// could not be mounted (ErrImageVolumeMountFailed in k8s.io/cri-api).
const imageVolumeFailed = "ImageVolumeMountFailed"

// createContainer has the steps in their order; see runSandbox.
func (c *Containers) createContainer(ctx context.Context, j *job.Job, rec record.Container) (id string, err error) {
	if id, err = c.containerOfName(ctx, j, &rec); id != "" || err != nil {
		return id, err
	}
	if err := c.newContainer(ctx, j, &rec, "", c.publishContainer); err != nil {
		return "", err
	}
	return rec.ID, nil
}

// newContainer makes a container whose name is free. archive is that of a pod's checkpoint, "" for none. The last step is
// made's. When a step fails, the container is torn down.
func (c *Containers) newContainer(ctx context.Context, j *job.Job, rec *record.Container, archive string, made func(context.Context, *job.Job, *hiddenContainer) error) (err error) {
	img, restore, err := c.findContent(ctx, j, rec, archive)
	if err != nil {
		return err
	}
	if err = c.findVolumeImages(ctx, rec); err != nil {
		return err
	}
	j.Stage("write record", "the state directory")
	if err = c.records.Containers.Create(rec.ID, rec); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = c.abandonContainer(ctx, j, rec.ID, err)
		}
	}()
	return errs.Guard("creation of container "+rec.ID, func() error {
		hidden, err := c.makeContainer(ctx, j, rec, img, restore)
		if err != nil {
			return err
		}
		return made(ctx, j, hidden)
	})
}

// hiddenContainer is one that the engine has made, and that clients do not see yet.
type hiddenContainer struct {
	rec        *record.Container
	engine     *engine.Container
	adjustment *plugins.Adjustment
}

// findContent finds the image of a container, or the checkpoint that it continues: a path of the host stands for a file.
// A container of a pod's checkpoint has both.
func (c *Containers) findContent(ctx context.Context, j *job.Job, rec *record.Container, archive string) (img *image.Image, restore *engine.RestoreSpec, err error) {
	if archive != "" || !filepath.IsAbs(rec.Config.Get().GetImage().GetImage()) {
		j.Stage("find image", "the image store")
		img, err = call.Get(ctx, c.calls, rec.ID, "find image", func(ctx context.Context) (*image.Image, error) {
			return c.findImage(ctx, rec, rec.Config.Get().GetImage())
		})
		if err == nil {
			err = refuseArtifact(img, rec.Config.Get().GetImage().GetImage())
		}
		if errors.Is(err, errs.Invalid) {
			err = fmt.Errorf("config.image.image: %w", err)
		}
		if err != nil {
			return nil, nil, err
		}
		rec.Image = record.SnapshotOf(img)
	}
	restore, err = c.restoreOf(rec, img, archive)
	return img, restore, err
}

// makeContainer does the steps between the record and the last one. The caller undoes them. img is nil when a file is
// restored.
func (c *Containers) makeContainer(ctx context.Context, j *job.Job, rec *record.Container, img *image.Image, restore *engine.RestoreSpec) (*hiddenContainer, error) {
	// Check again after the record is written: either a stop of the sandbox came first and
	// this check sees it, or the stop finds the record and this job.
	sb, err := c.records.SandboxOfNew(rec.SandboxID)
	if err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	if restore != nil {
		if img, err = c.readCheckpoint(ctx, j, rec, restore, img); err != nil {
			return nil, err
		}
	}
	spec, err := c.containerSpec(rec, sb, img)
	if err != nil {
		return nil, err
	}
	if restore != nil {
		spec.Restored = restore.Dir
	}
	spec.Stage = j.Stage
	adjustment := c.plugins.Adjustment(rec, sb)
	if adjustment != nil {
		spec.Adjust = adjustment.Apply
	}
	j.Stage("create container", "the engine")
	made, err := call.Get(ctx, c.calls, rec.ID, "create container "+rec.ID, func(ctx context.Context) (*engine.Container, error) {
		return c.engine.Create(ctx, spec)
	})
	if err != nil {
		return nil, err
	}
	if err = c.checkTarget(ctx, rec.Config.Get()); err != nil {
		return nil, err
	}
	return &hiddenContainer{rec: rec, engine: made, adjustment: adjustment}, nil
}

// publishContainer is the last step: clients see the container.
func (c *Containers) publishContainer(ctx context.Context, j *job.Job, made *hiddenContainer) error {
	rec := made.rec
	j.Stage("publish", "the state directory")
	if ctx.Err() != nil {
		return fmt.Errorf("cannot publish container: %w", context.Cause(ctx))
	}
	created, err := c.records.Containers.Update(rec.ID, func(r *record.Container) error {
		r.State, r.Engine = record.ContainerCreated, made.engine
		if limits := made.adjustment.Limits(); limits != nil {
			r.Resources = store.MessageOf(mergeResources(r.CurrentResources(), limits))
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.plugins.CreatedContainer(ctx, created)
	c.log.Info("container created",
		"container", rec.ID, "sandbox", rec.SandboxID,
		"name", rec.Config.Get().GetMetadata().GetName(), "took", j.Info().Age)
	return nil
}

// containerOfName is sandboxOfName for containers.
func (c *Containers) containerOfName(ctx context.Context, j *job.Job, rec *record.Container) (string, error) {
	id, old, taken := c.records.Containers.ByName(rec.Name())
	if !taken {
		return "", nil
	}
	differs := job.Difference(old.Request(), rec.Request())
	switch {
	case old.Removing || old.State == record.ContainerCreating:
		j.Stage("remove what an earlier attempt left", "its teardown")
		if err := c.teardownContainer(ctx, j, id); err != nil {
			return "", fmt.Errorf("cannot remove container %q, which an earlier attempt left under the same name: %w", id, err)
		}
		return "", nil
	case differs != "":
		return "", fmt.Errorf("container %q has the name %s and another %s: %w", id, rec.Name(), differs, errs.Exists)
	case old.State == record.ContainerCreated && old.Stop == nil:
		return id, nil
	default:
		return "", fmt.Errorf("container %q has the name %s and is %s; remove it or ask for the next attempt: %w", id, rec.Name(), old.State, errs.Exists)
	}
}

// abandonContainer is abandonSandbox for containers. A container that cannot be
// torn down is shown as one that failed to start.
func (c *Containers) abandonContainer(ctx context.Context, j *job.Job, id string, cause error) error {
	j.StageFailed(cause)
	if errors.Is(context.Cause(ctx), job.ErrShutdown) {
		return fmt.Errorf("%w: %w", job.ErrShutdown, cause)
	}
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = fmt.Errorf("%w: %w", context.Cause(ctx), cause)
	}
	err := c.teardownContainer(ctx, j, id)
	if err == nil {
		return cause
	}
	why := fmt.Sprintf("it could not be created (%v) and is being removed (%v)", cause, err)
	updateErr := c.recordStartError(id, why, func(r *record.Container) { r.Removing = true })
	c.retryContainer(ctx, id)
	return errors.Join(cause, err, errs.IgnoreNotFound(updateErr))
}

func (c *Containers) findImage(ctx context.Context, rec *record.Container, spec *runtimeapi.ImageSpec) (*image.Image, error) {
	img, err := c.lookUp(ctx, rec, spec)
	if errors.Is(err, errs.NotFound) {
		name := spec.GetUserSpecifiedImage()
		if name == "" || name == spec.GetImage() {
			return nil, fmt.Errorf("image %q is not on this node; pull it first: %w", spec.GetImage(), errs.NotFound)
		}
		return nil, fmt.Errorf("image %q (%s) is not on this node; pull it first: %w", spec.GetImage(), name, errs.NotFound)
	}
	if err != nil {
		return nil, err
	}
	name := spec.GetUserSpecifiedImage()
	if name == "" {
		name = spec.GetImage()
	}
	return img, c.admit(ctx, rec, img, name)
}

// lookUp finds an image for the platform of a container's sandbox. Kind Unsupported if the node has it for others only.
func (c *Containers) lookUp(ctx context.Context, rec *record.Container, spec *runtimeapi.ImageSpec) (*image.Image, error) {
	images, ok := c.images.(image.PlatformStore)
	if !ok {
		return c.images.Get(ctx, spec.GetImage())
	}
	sb, err := c.records.SandboxOfNew(rec.SandboxID)
	if err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	img, err := images.GetFor(ctx, sb.Platform, spec.GetImage())
	var other *image.OtherPlatformError
	if !errors.As(err, &other) {
		return img, err
	}
	name, has := cmp.Or(spec.GetUserSpecifiedImage(), spec.GetImage()), strings.Join(other.Has, ", ")
	if sb.Platform == "" {
		return nil, fmt.Errorf("image %q (%s) is on this node for %s, and the pod needs it for the node's platform, %s: pull it with 'berth image pull %s', or select a RuntimeClass whose handler has the platform: %w",
			spec.GetImage(), name, has, image.NodePlatform(), name, errs.Unsupported)
	}
	return nil, fmt.Errorf("image %q (%s) is on this node for %s, and the pod needs it for %s, the platform of its handler %s: pull it with 'berth image pull --handler %s %s'; a kubelet names the handler if its feature gate RuntimeClassInImageCriApi is on: %w",
		spec.GetImage(), name, has, sb.Platform, sb.Handler, sb.Handler, name, errs.Unsupported)
}

// refuseArtifact returns an error for what has files to mount, and no root filesystem.
func refuseArtifact(img *image.Image, ref string) error {
	if img.Artifact == nil {
		return nil
	}
	if len(img.Tags) > 0 {
		ref = img.Tags[0]
	}
	return fmt.Errorf("%s is an OCI artifact (type %s), not an image; containers can mount its files as an image volume: %w", ref, img.Artifact.Type, errs.Invalid)
}

// admit returns nil if a container may use an image: the policy may have changed since the pull, and the image may have
// been pulled for another namespace.
func (c *Containers) admit(ctx context.Context, rec *record.Container, img *image.Image, name string) error {
	admitter, ok := c.images.(image.Admitter)
	if !ok {
		return nil
	}
	sb, err := c.records.SandboxOfNew(rec.SandboxID)
	if err != nil {
		return fmt.Errorf("cannot create container: %w", err)
	}
	return admitter.Admit(ctx, sb.Config.Get().GetMetadata().GetNamespace(), img.ID, name)
}

// findVolumeImages sets the ids and references of the images that the request mounts, by the
// mount's index.
func (c *Containers) findVolumeImages(ctx context.Context, rec *record.Container) error {
	for i, m := range rec.Config.Get().GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		img, err := call.Get(ctx, c.calls, rec.ID, "find a volume's image", func(ctx context.Context) (*image.Image, error) {
			return c.findImage(ctx, rec, m.GetImage())
		})
		if err == nil && img.Artifact != nil && len(img.Artifact.Files) == 0 {
			err = fmt.Errorf("the OCI artifact %s (type %s) has no file to mount: none of its layers has a name (the annotation %s): %w",
				m.GetImage().GetImage(), img.Artifact.Type, imagespec.AnnotationTitle, errs.Invalid)
		}
		if err != nil {
			return &engine.VolumeError{Err: fmt.Errorf("config.mounts[%d].image.image: %w", i, err)}
		}
		if rec.VolumeImages == nil {
			rec.VolumeImages, rec.VolumeRefs = map[int]string{}, map[int]string{}
		}
		rec.VolumeImages[i], rec.VolumeRefs[i] = img.ID, record.SnapshotOf(img).Ref
	}
	return nil
}

func (c *Containers) containerSpec(rec *record.Container, sb *record.Sandbox, img *image.Image) (*engine.ContainerSpec, error) {
	spec := &engine.ContainerSpec{
		ID: rec.ID, SandboxSpec: c.records.SandboxSpec(sb), Sandbox: sb.Engine, Config: rec.Config.Get(),
		VolumeImages: rec.VolumeImages,
		ImageID:      img.ID, ImageConfig: img.Config, LogPath: rec.LogPath,
		Dir: c.records.ContainerDir(rec.ID),
	}
	ns := rec.Config.Get().GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return spec, nil
	}
	target, err := c.records.Container(ns.GetTargetId())
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", targetField, err)
	case target.SandboxID != rec.SandboxID:
		return nil, fmt.Errorf("%s: container %q is in another sandbox: %w", targetField, target.ID, errs.Invalid)
	case target.State != record.ContainerRunning:
		return nil, fmt.Errorf("%s: container %q does not run: %w", targetField, target.ID, errs.State)
	}
	spec.TargetID, spec.TargetPID = target.ID, target.Pid
	return spec, nil
}

const targetField = "config.linux.security_context.namespace_options.target_id"

// checkTarget refuses a container whose target ended while the container was created: another
// process may have had the target's PID by the time that the container joined it.
func (c *Containers) checkTarget(ctx context.Context, config *runtimeapi.ContainerConfig) error {
	ns := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return nil
	}
	target, err := c.records.Container(ns.GetTargetId())
	if err != nil {
		return fmt.Errorf("%s: %w", targetField, err)
	}
	state, err := c.stateOf(ctx, target.ID)
	if err == nil && state == engine.StateUnknown {
		err = fmt.Errorf("the engine does not report its state: %w", errs.Unavailable)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot find out whether container %q still runs: %w", targetField, target.ID, err)
	}
	if hasEnded(state) {
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
