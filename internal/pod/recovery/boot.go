package recovery

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
)

// enterBoot handles a reboot, if there was one. It updates records from before it. Where the
// state directory was emptied, tombstones become records of what has ended. The file "boot" in
// the state directory says which boot was entered last.
func (r *recovery) enterBoot() error {
	entered := filepath.Join(r.StateDir, "boot")
	last, err := os.ReadFile(entered)
	if err == nil && string(last) == r.BootID {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot read which boot was entered last: %w", err)
	}
	sandboxes, containers, err := r.Tombstones.All()
	if err != nil {
		return err
	}
	for _, rec := range sandboxes {
		_, err := r.Records.Sandboxes.Get(rec.ID)
		if errors.Is(err, errs.NotFound) {
			rec := *rec
			r.restored(r.Records.Sandboxes.Create(rec.ID, r.rebootedSandbox(&rec)))
		}
	}
	for _, rec := range containers {
		_, err := r.Records.Containers.Get(rec.ID)
		if errors.Is(err, errs.NotFound) {
			rec := *rec
			r.restored(r.Records.Containers.Create(rec.ID, r.rebootedContainer(&rec)))
		}
	}
	for _, rec := range r.Records.Sandboxes.All() {
		if rec.Boot != r.BootID {
			_, err := r.Records.Sandboxes.Update(rec.ID, func(sb *record.Sandbox) error { r.rebootedSandbox(sb); return nil })
			r.restored(err)
		}
	}
	for _, rec := range r.Records.Containers.All() {
		if rec.Boot != r.BootID {
			_, err := r.Records.Containers.Update(rec.ID, func(c *record.Container) error { r.rebootedContainer(c); return nil })
			r.restored(err)
		}
	}
	return r.Disk.Write(entered, []byte(r.BootID))
}

// rebootedSandbox updates a record to what a reboot did to the sandbox.
func (r *recovery) rebootedSandbox(sb *record.Sandbox) *record.Sandbox {
	if sb.State == record.SandboxReady {
		sb.State, sb.Message = record.SandboxStopping, "the node was restarted"
	}
	sb.Boot = r.BootID
	return sb
}

// rebootedContainer updates a record to what a reboot did to the container.
func (r *recovery) rebootedContainer(c *record.Container) *record.Container {
	if c.Visible() && c.State != record.ContainerExited {
		c.SetExited(time.Now(), engine.CodeUnknown, engine.ReasonUnknown, fmt.Sprintf("the node was restarted while the container was %s", c.State))
	}
	c.Boot = r.BootID
	return c
}

// restored logs why a record could not be updated after a reboot. The others continue.
func (r *recovery) restored(err error) {
	if err != nil {
		r.Log.Error("cannot update a record after the restart of the node", "error", err)
	}
}
