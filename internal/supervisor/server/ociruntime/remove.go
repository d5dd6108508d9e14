package ociruntime

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runc/libcontainer"

	"github.com/berthrun/berth/internal/errs"
)

// Remove removes the runtime's own state of a container, and its cgroup through
// the manager that made it (systemd forgets the scope then). The processes must
// be dead. Nil when nothing is there; a container that is partly created is removed too.
// An error says only why: the caller adds that the container cannot be removed.
func (r *Runtime) Remove(id string) error {
	c, err := r.load(id)
	switch {
	case err == nil:
		// Destroy of an object whose status nobody asked for kills a container
		// that runs, and says nothing.
		status, err := c.Status()
		if err != nil {
			return fmt.Errorf("cannot read its status: %w", err)
		}
		if status != libcontainer.Stopped {
			return fmt.Errorf("it is %s: %w", status, errs.State)
		}
		if err := c.Destroy(); err != nil {
			return fmt.Errorf("cannot destroy it: %w", err)
		}
	case errors.Is(err, errs.Invalid):
		return err // an id that is no file name: nothing can be there
	case !errors.Is(err, errs.NotFound):
		// A state file that cannot be read: the directory is all that is ours,
		// the cgroup is the caller's.
	}
	if err := os.RemoveAll(r.dir(id)); err != nil {
		return fmt.Errorf("cannot remove its state: %w", err)
	}
	return nil
}
