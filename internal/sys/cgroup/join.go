package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Entrance has what a child needs to be in a cgroup before it does anything, without a wait of the
// kernel: see OpenEntrance. Close closes it.
type Entrance struct {
	// V2 is the directory of the unified hierarchy, for CLONE_INTO_CGROUP; nil without one.
	V2 *os.File
	// Tasks are the files "tasks" of the other hierarchies. A thread that writes "0" to one joins
	// the cgroup alone, without the lock that a move of other threads needs.
	Tasks []*os.File
}

// OpenEntrance opens the cgroups. Kind State when one is gone.
func (p Paths) OpenEntrance() (*Entrance, error) {
	e := &Entrance{}
	for _, dir := range p.dirs() {
		var err error
		if dir == p[""] {
			e.V2, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		} else {
			var tasks *os.File
			if tasks, err = os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0); err == nil {
				e.Tasks = append(e.Tasks, tasks)
			}
		}
		if err != nil {
			e.Close()
			if errors.Is(err, os.ErrNotExist) {
				err = errs.State
			}
			return nil, fmt.Errorf("cannot open cgroup %s: %w", dir, err)
		}
	}
	return e, nil
}

// Close closes the files.
func (e *Entrance) Close() {
	if e.V2 != nil {
		e.V2.Close()
	}
	for _, f := range e.Tasks {
		f.Close()
	}
}
