package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/exits"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
)

// adoptFormer takes over the sandboxes and containers that another runtime made. It writes the
// records of all before it changes anything, and takes over what has a record: also what an
// earlier start has recorded. So it can be interrupted at any point, and repeated.
func (r *recovery) adoptFormer(ctx context.Context) error {
	adopter, can := r.Engine.(engine.Adopter)
	if !can {
		return nil
	}
	former, err := adopter.Former(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the pods of a former runtime: %w", err)
	}
	for _, sandbox := range former.Sandboxes {
		if err := r.recorded("sandbox", sandbox.ID, r.recordFormerSandbox(sandbox)); err != nil {
			return err
		}
	}
	// Of containers with one name the first is adopted: one that runs, and the older one.
	slices.SortStableFunc(former.Containers, func(a, b *engine.FormerContainer) int {
		return cmp.Or(cmp.Compare(rankOf(b), rankOf(a)), cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	for _, c := range former.Containers {
		if err := r.recorded("container", c.ID, r.recordFormerContainer(ctx, c)); err != nil {
			return err
		}
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, rec := range r.Records.Containers.All() {
		if rec.Adopted {
			g.Go(func() error {
				if err := adopter.AdoptContainer(ctx, rec.ID); err != nil {
					r.Log.Error("cannot adopt a container", "container", rec.ID, "error", err)
				}
				return nil
			})
		}
	}
	for _, rec := range r.Records.Sandboxes.All() {
		if rec.Adoption != "" {
			g.Go(func() error {
				errs.Protect("adoption of sandbox "+rec.ID, func() { r.takeOver(ctx, adopter, rec) })
				return nil
			})
		}
	}
	return g.Wait()
}

// recorded logs what became of the record of an object. An object that cannot be adopted now has kind
// State or NotFound: it stays with the other runtime until the next start. Any other error ends this
// start, as the kubelet would start a second instance of what is missing in a pod.
func (r *recovery) recorded(kind, id string, err error) error {
	switch {
	case err == nil:
		r.Log.Info("adopting what another runtime made", "kind", kind, "id", id)
	case errors.Is(err, errs.Exists):
	case errors.Is(err, errs.State) || errors.Is(err, errs.NotFound):
		r.Log.Error("cannot adopt what another runtime made", "kind", kind, "id", id, "error", err)
	default:
		return fmt.Errorf("cannot record the %s %s of a former runtime: %w", kind, id, err)
	}
	return nil
}

// recordFormerSandbox writes the record of a sandbox that another runtime made. Kind Exists if
// there is one.
func (r *recovery) recordFormerSandbox(sandbox *engine.FormerSandbox) error {
	rec := &record.Sandbox{
		ID: sandbox.ID, Boot: r.BootID, State: record.SandboxReady, Adoption: record.AdoptionBegun,
		Config: store.MessageOf(sandbox.Config), CreatedAt: sandbox.CreatedAt, Engine: sandbox.Sandbox,
	}
	if !sandbox.Running {
		rec.State, rec.Message = record.SandboxStopping, "it did not run when berth adopted it"
	}
	return r.Records.Sandboxes.Create(rec.ID, rec)
}

// rankOf orders containers of one name; see record.Container.Rank.
func rankOf(c *engine.FormerContainer) int {
	switch c.State {
	case engine.StateRunning:
		return 2
	case engine.StateCreated:
		return 1
	}
	return 0
}

// recordFormerContainer is recordFormerSandbox for containers. Kind NotFound if the sandbox has no
// record, State if the container is being removed or another one has its name: nothing distinguishes
// the two for a kubelet, and this one runs on.
func (r *recovery) recordFormerContainer(ctx context.Context, c *engine.FormerContainer) error {
	if _, err := r.Records.Containers.Get(c.ID); err == nil {
		return errs.Exists
	}
	if _, err := r.Records.Sandboxes.Get(c.SandboxID); err != nil {
		return fmt.Errorf("its sandbox is not adopted: %w", err)
	}
	rec := &record.Container{
		ID: c.ID, SandboxID: c.SandboxID, Boot: r.BootID, Adopted: true, Engine: &engine.Container{},
		Config: store.MessageOf(c.Config), LogPath: c.LogPath, CreatedAt: c.CreatedAt, StartedAt: c.StartedAt, Pid: c.Pid,
		Image: record.ImageSnapshot{ID: c.ImageID, Ref: c.ImageID},
	}
	// Without its image the container has the same state, and only a shorter name of it.
	if img, err := r.Images.Get(ctx, c.ImageID); err == nil {
		rec.Image = record.SnapshotOf(img)
	} else if !errors.Is(err, errs.NotFound) {
		r.Log.Warn("cannot read the image of an adopted container", "container", c.ID, "image", c.ImageID, "error", err)
	}
	rec.Image.StopSignal = c.StopSignal
	if other, _, taken := r.Records.Containers.ByName(rec.Name()); taken {
		meta := c.Config.GetMetadata()
		return fmt.Errorf("container %s of its sandbox has the same name %q and attempt %d; leaving this one alone, remove it by hand: %w",
			other, meta.GetName(), meta.GetAttempt(), errs.State)
	}
	switch {
	case c.Exit != nil:
		reason, message := exits.ReasonOf(c.Exit)
		rec.SetExited(c.Exit.At, c.Exit.Code, reason, message)
	case c.State == engine.StateRunning:
		rec.State = record.ContainerRunning
	case c.State == engine.StateCreated:
		rec.State = record.ContainerCreated
	default:
		return fmt.Errorf("it is being removed: %w", errs.State)
	}
	return r.Records.Containers.Create(rec.ID, rec)
}

// hasAddress reports whether a sandbox has all addresses that it should have: none of its own on the
// host's network.
func hasAddress(sb *record.Sandbox) bool {
	onHost := sb.Config.Get().GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
	return onHost || sb.Network != nil && len(sb.Network.IPs) > 0
}

// takeOver finishes the adoption of a sandbox that has a record.
func (r *recovery) takeOver(ctx context.Context, adopter engine.Adopter, rec *record.Sandbox) {
	ctx, cancel := context.WithTimeout(ctx, r.Step)
	defer cancel()
	if err := adopter.AdoptSandbox(ctx, rec.ID, rec.Engine); err != nil {
		r.Log.Error("cannot adopt a sandbox", "sandbox", rec.ID, "error", err)
		return
	}
	if rec.Adoption == record.AdoptionDone {
		return
	}
	sb := rec.Engine
	if sb == nil { // it was recorded before the node was restarted
		sb = &engine.Sandbox{}
	}
	result, err := r.Attachments.Adopt(ctx, rec, sb)
	if err != nil {
		r.Log.Error("cannot adopt the network of a sandbox", "sandbox", rec.ID, "error", err)
		return
	}
	if _, err := r.Records.Sandboxes.Update(rec.ID, func(sb *record.Sandbox) error {
		if sb.State != record.SandboxReady {
			sb.Adoption = record.AdoptionDone
			return nil
		}
		sb.Network = result
		if hasAddress(sb) {
			sb.Adoption = record.AdoptionDone
		} else {
			r.Log.Warn("an adopted sandbox has no address; the next start looks for it again", "sandbox", rec.ID)
		}
		return nil
	}); err != nil {
		r.Log.Error("cannot record the adoption of a sandbox", "sandbox", rec.ID, "error", err)
	}
}
