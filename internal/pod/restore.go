package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod/call"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/podcheckpoint"
	"github.com/berthrun/berth/internal/pod/podnet"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
)

// checkpointAnnotations returns those by which CRI-O, containerd and podman know an image that was made from the archive of
// a checkpoint.
func checkpointAnnotations() []string {
	return []string{
		"io.kubernetes.cri-o.annotations.checkpoint.name",
		"org.criu.checkpoint.container.name",
		"io.podman.annotations.checkpoint.name",
	}
}

// hasCheckpoint reports whether an image has a checkpoint in it.
func hasCheckpoint(img *image.Image) bool {
	return slices.ContainsFunc(checkpointAnnotations(), func(name string) bool { _, has := img.Annotations[name]; return has })
}

// restoreOf returns where the archive is whose processes a container continues, nil for one that runs a program: the
// archive of a pod's checkpoint, a file in the place of an image, or an image with a checkpoint in it; img is nil for a
// file. Kind Unsupported when such containers are not restored.
func (c *Containers) restoreOf(rec *record.Container, img *image.Image, archive string) (*engine.RestoreSpec, error) {
	name := rec.Config.Get().GetImage().GetImage()
	if archive == "" && img != nil && !hasCheckpoint(img) {
		return nil, nil //nolint:nilnil // most images have none
	}
	refuse := func(err error) error {
		switch {
		case archive != "":
			return fmt.Errorf("cannot restore the checkpoint: %w", err)
		case img != nil:
			return fmt.Errorf("config.image.image: the image has a checkpoint in it: %w", err)
		}
		return fmt.Errorf("config.image.image: %q is the path of a checkpoint: %w", name, err)
	}
	sb, err := c.records.SandboxOfNew(rec.SandboxID)
	if err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	restorer, can := c.engine.(engine.Restorer)
	if !can {
		return nil, refuse(fmt.Errorf("its engine restores no checkpoints: %w", errs.Unsupported))
	}
	if err := restorer.CheckRestore(sb.Engine, sb.Handler); err != nil {
		return nil, refuse(err)
	}
	spec := &engine.RestoreSpec{Sandbox: sb.Engine, SandboxSpec: c.records.SandboxSpec(sb), Dir: filepath.Join(c.records.ContainerDir(rec.ID), "restored")}
	switch {
	case archive != "":
		spec.Location, spec.Name = archive, rec.Config.Get().GetMetadata().GetName()
	case img != nil:
		spec.ImageID = img.ID
	default:
		spec.Location = name
	}
	return spec, nil
}

// readCheckpoint reads an archive, and returns the image on which the container's root filesystem is based. It is that of
// the record from then on. The archive cannot choose what is not on the node, and that of a pod's checkpoint has to have
// the requested image.
func (c *Containers) readCheckpoint(ctx context.Context, j *job.Job, rec *record.Container, restore *engine.RestoreSpec, requested *image.Image) (*image.Image, error) {
	j.Stage("read checkpoint", "the archive")
	base, err := call.Get(ctx, c.calls, rec.ID, "read the checkpoint of container "+rec.ID, func(ctx context.Context) ([]string, error) {
		return c.engine.(engine.Restorer).ReadCheckpoint(ctx, restore)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot restore the checkpoint: %w", err)
	}
	var img *image.Image
	for _, ref := range base {
		img, err = call.Get(ctx, c.calls, rec.ID, "find base image", func(ctx context.Context) (*image.Image, error) {
			found, err := c.lookUp(ctx, rec, &runtimeapi.ImageSpec{Image: ref})
			if err != nil {
				return nil, err
			}
			if err := refuseArtifact(found, ref); err != nil {
				return nil, err
			}
			return found, c.admit(ctx, rec, found, ref)
		})
		if err == nil {
			break
		}
	}
	switch {
	case errors.Is(err, errs.NotFound):
		return nil, fmt.Errorf("cannot restore the checkpoint: its base image %s is not on this node; pull it first: %w", base[0], errs.NotFound)
	case err != nil:
		return nil, fmt.Errorf("cannot restore the checkpoint: base image: %w", err)
	case hasCheckpoint(img):
		return nil, fmt.Errorf("cannot restore the checkpoint: its base image %s has a checkpoint in it: %w", base[0], errs.Invalid)
	case restore.Name != "" && img.ID != requested.ID:
		return nil, fmt.Errorf("cannot restore the checkpoint: image.image: its base image is %s, and %q is %s: %w",
			img.ID, rec.Config.Get().GetImage().GetImage(), requested.ID, errs.Invalid)
	}
	rec.Image = record.SnapshotOf(img)
	_, err = c.records.Containers.Update(rec.ID, func(r *record.Container) error {
		r.Image = rec.Image
		return nil
	})
	return img, err
}

// RestoreSandbox makes a sandbox and its containers from the directory of a checkpoint, which it does not change. The
// containers are created, and continue when they are started. Clients see all of them or none. It joins the job that does
// the same. A failure, and the deadline of ctx, remove all that was made.
func (s *Sandboxes) RestoreSandbox(ctx context.Context, req *runtimeapi.RestorePodRequest) (id string, restored []*runtimeapi.RestoredContainer, err error) {
	config, containers := req.GetConfig(), req.GetContainerConfigs()
	if err := s.checkRestore(config, containers, req.GetRuntimeHandler()); err != nil {
		return "", nil, fmt.Errorf("cannot restore sandbox: %w", err)
	}
	rec := &record.Sandbox{
		ID: newID(), Boot: s.bootID, State: record.SandboxCreating, CreatedAt: now(), Handler: req.GetRuntimeHandler(),
		Config: store.MessageOf(config), RestoredFrom: req.GetCheckpointPath(), Platform: s.platforms()[req.GetRuntimeHandler()],
	}
	want := &runtimeapi.RestorePodRequest{CheckpointPath: rec.RestoredFrom, Config: rec.Request().GetConfig(), RuntimeHandler: rec.Handler}
	for _, c := range containers {
		want.ContainerConfigs = append(want.ContainerConfigs, s.containers.newRecord(rec, c).Request().GetConfig())
	}
	slices.SortFunc(want.ContainerConfigs, func(a, b *runtimeapi.ContainerConfig) int {
		return cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	by := answerBy(ctx)
	id, err = s.jobs.Do(ctx, &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindRestore, Want: want,
		Run: func(ctx context.Context, j *job.Job) (string, error) {
			ctx, cancel := withDeadline(ctx, by)
			defer cancel()
			id, err := s.restoreSandbox(ctx, j, rec, containers)
			if err != nil {
				return "", fmt.Errorf("cannot restore sandbox: %w", err)
			}
			return id, nil
		},
	})
	if err != nil {
		return "", nil, err
	}
	for _, c := range s.records.Containers.InGroup(id) {
		restored = append(restored, &runtimeapi.RestoredContainer{Name: c.Config.Get().GetMetadata().GetName(), ContainerId: c.ID})
	}
	slices.SortFunc(restored, func(a, b *runtimeapi.RestoredContainer) int { return cmp.Compare(a.Name, b.Name) })
	return id, restored, nil
}

// checkRestore refuses what RunSandbox and CreateContainer refuse before they make anything.
func (s *Sandboxes) checkRestore(config *runtimeapi.PodSandboxConfig, containers []*runtimeapi.ContainerConfig, handler string) error {
	restorer, can := s.engine.(engine.Restorer)
	if !can {
		return fmt.Errorf("its engine restores no checkpoints: %w", errs.Unsupported)
	}
	if err := restorer.CheckRestore(nil, handler); err != nil {
		return err
	}
	if err := s.engine.CheckSandbox(config); err != nil {
		return err
	}
	if err := podnet.Check(config); err != nil {
		return err
	}
	for i, c := range containers {
		err := s.engine.CheckContainer(c, config)
		if name := c.GetImage().GetImage(); err == nil && filepath.IsAbs(name) {
			err = fmt.Errorf("config.image.image: %q is a path, not the image of the container: %w", name, errs.Invalid)
		}
		if err != nil {
			return fmt.Errorf("container_configs[%d]: %w", i, err)
		}
	}
	return nil
}

// restoreSandbox has the steps in their order; see runSandbox.
func (s *Sandboxes) restoreSandbox(ctx context.Context, j *job.Job, rec *record.Sandbox, configs []*runtimeapi.ContainerConfig) (id string, err error) {
	if id, err = s.restoredOfName(ctx, j, rec, configs); id != "" || err != nil {
		return id, err
	}
	j.Stage("read checkpoint", rec.RestoredFrom)
	pod, err := call.Get(ctx, s.calls, rec.ID, "read checkpoint_path", func(context.Context) (*podcheckpoint.Pod, error) {
		return podcheckpoint.Read(rec.RestoredFrom)
	})
	if err != nil {
		return "", err
	}
	files, err := pod.Match(configs)
	if err != nil {
		return "", err
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
	if err = errs.Guard("restore of sandbox "+rec.ID, func() error {
		if err := s.makeSandbox(ctx, j, rec, record.SandboxRestoring); err != nil {
			return err
		}
		made, err := s.restoreContainers(ctx, j, rec, configs, files)
		if err != nil {
			return err
		}
		return s.publishRestored(ctx, j, rec, made)
	}); err != nil {
		return "", err
	}
	return rec.ID, nil
}

// restoredOfName is sandboxOfName for a restore. Its result is a sandbox that an equal request has restored, as long as none
// of its containers was started.
func (s *Sandboxes) restoredOfName(ctx context.Context, j *job.Job, rec *record.Sandbox, configs []*runtimeapi.ContainerConfig) (string, error) {
	id, old, taken := s.records.Sandboxes.ByName(rec.Name())
	if taken && old.State == record.SandboxReady && old.RestoredFrom == rec.RestoredFrom && job.Difference(old.SameRequest(rec)) == "" && s.hasOnly(old, configs) {
		return id, nil
	}
	id, err := s.sandboxOfName(ctx, j, rec)
	if id != "" {
		err = fmt.Errorf("sandbox %q has the name %s and was not restored from %s; remove it or ask for the next attempt: %w", id, rec.Name(), rec.RestoredFrom, errs.Exists)
	}
	return "", err
}

// hasOnly reports whether the containers of a sandbox are those of a request, created and not started.
func (s *Sandboxes) hasOnly(sb *record.Sandbox, configs []*runtimeapi.ContainerConfig) bool {
	there := s.records.Containers.InGroup(sb.ID)
	for _, config := range configs {
		want := s.containers.newRecord(sb, config)
		if !slices.ContainsFunc(there, func(c *record.Container) bool {
			return c.Name() == want.Name() && c.State == record.ContainerCreated && !c.Removing && c.Stop == nil && job.Difference(c.Request(), want.Request()) == ""
		}) {
			return false
		}
	}
	return len(there) == len(configs)
}

// restoreContainers makes the containers, each by its own job. They stay hidden.
func (s *Sandboxes) restoreContainers(ctx context.Context, j *job.Job, rec *record.Sandbox, configs []*runtimeapi.ContainerConfig, files []string) ([]*hiddenContainer, error) {
	deadline, _ := ctx.Deadline()
	j.StageUntil("restore containers", "the jobs of its containers", deadline)
	made := make([]*hiddenContainer, len(configs))
	g, ctx := errgroup.WithContext(ctx)
	for i, config := range configs {
		g.Go(func() (err error) {
			made[i], err = s.containers.restorePart(ctx, rec, config, filepath.Join(rec.RestoredFrom, files[i]))
			if err != nil {
				err = fmt.Errorf("container_configs[%d]: %w", i, err)
			}
			return err
		})
	}
	return made, g.Wait()
}

// restorePart makes one container of a pod that is restored, by a job of the container that ends with ctx.
func (c *Containers) restorePart(ctx context.Context, sb *record.Sandbox, config *runtimeapi.ContainerConfig, archive string) (made *hiddenContainer, err error) {
	rec := c.newRecord(sb, config)
	_, err = c.jobs.Do(context.WithoutCancel(ctx), &job.Request{
		Key: rec.Name(), ID: rec.ID, Kind: kindCreate, Want: rec.Request(),
		Run: func(own context.Context, j *job.Job) (string, error) {
			own, leave := alsoWith(own, ctx)
			defer leave()
			return rec.ID, c.newContainer(own, j, rec, archive, func(_ context.Context, _ *job.Job, hidden *hiddenContainer) error {
				made = hidden
				return nil
			})
		},
	})
	return made, err
}

// publishRestored is the last step: clients see the containers, and then the sandbox. After a crash before its end the
// next start removes all of them, with the sandbox.
func (s *Sandboxes) publishRestored(ctx context.Context, j *job.Job, rec *record.Sandbox, made []*hiddenContainer) error {
	for _, hidden := range made {
		if err := s.containers.publishContainer(ctx, j, hidden); err != nil {
			return err
		}
	}
	if _, err := s.records.Sandboxes.Update(rec.ID, func(r *record.Sandbox) error {
		if r.Message != "" {
			return fmt.Errorf("%s: %w", r.Message, errs.Unavailable)
		}
		r.State = record.SandboxReady
		return nil
	}); err != nil {
		return err
	}
	s.logReady(j, rec)
	return nil
}
