package ociruntime

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runc/libcontainer"

	"github.com/berthrun/berth/internal/errs"
)

// Remove removes the runtime's own state of a container, and its cgroup through the
// manager that made it (systemd drops the scope then). The processes must be dead. It
// also removes a partly created container. Nil when there is none.
// An error says only why: the caller adds that the container cannot be removed.
func (r *Runtime) Remove(id string) error {
	c, err := r.load(id)
	switch {
	case err == nil:
		// Without a call of Status before it, Destroy kills a running container without
		// an error.
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
		return err // the id is not a file name: no state can exist
	case !errors.Is(err, errs.NotFound):
		// The state file cannot be read: only the directory is ours, the cgroup is
		// the caller's.
	}
	r.states.Forget(id)
	if err := os.RemoveAll(r.dir(id)); err != nil {
		return fmt.Errorf("cannot remove its state: %w", err)
	}
	return nil
}
