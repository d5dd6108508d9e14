package job

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Cancel cancels a running job for somebody outside of it, and waits until it has ended. id is that of the object, an
// unambiguous prefix, or the key. refuse, which gets the job as it is, returns an error for a job that must not be
// cancelled. It returns the job as it was before, and its end.
//
// Errors: that of refuse, NotFound, Invalid for a prefix of several, and Deadline if ctx ends first: the job goes on
// with the undo.
func (t *Table) Cancel(ctx context.Context, id string, cause error, refuse func(Info) error) (before Info, end Update, err error) {
	j, err := t.search(id)
	if err != nil {
		return Info{}, Update{}, err
	}
	before = j.Info()
	if err := refuse(before); err != nil {
		return before, Update{}, err
	}
	j.Cancel(cause)
	select {
	case <-j.done:
		end := Update{Info: j.Info(), Ended: true, Result: j.outcome(), Err: j.err}
		end.Stage, end.WaitsFor = Ended, ""
		return before, end, nil
	case <-ctx.Done():
		now := j.Info()
		return before, Update{}, fmt.Errorf("%q of %s is cancelled and has not ended yet: it is at stage %q and waits for %s: %w", now.Kind, now.Key, now.Stage, now.WaitsFor, errs.Deadline)
	}
}

// search finds a job that runs. Where others of its key wait for it, it is the one that works.
func (t *Table) search(id string) (*Job, error) {
	if id == "" {
		return nil, fmt.Errorf("cannot find a job: its id is empty: %w", errs.Invalid)
	}
	exact, prefixed := map[string]*Job{}, map[string]*Job{}
	for _, j := range t.Running() {
		into := prefixed
		switch {
		case j.Key == id || j.ID == id:
			into = exact
		case !strings.HasPrefix(j.ID, id):
			continue
		}
		slot := j.Key
		if j.beside {
			slot = j.ID
		}
		if other := into[slot]; other == nil || other.stage.Load().name == StageWait {
			into[slot] = j
		}
	}
	candidates := exact
	if len(exact) == 0 {
		candidates = prefixed
	}
	var found *Job
	for _, j := range candidates {
		if found != nil {
			return nil, fmt.Errorf("%q could be job %s of %s or job %s of %s: %w", id, found.ID, found.Key, j.ID, j.Key, errs.Invalid)
		}
		found = j
	}
	if found == nil {
		return nil, fmt.Errorf("no job %q runs; `berth jobs` shows those that do: %w", id, errs.NotFound)
	}
	return found, nil
}
