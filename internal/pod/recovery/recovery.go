// Package recovery reconciles the records with the objects of the engine: when the daemon
// starts, after a reboot, and when the engine is back.
//
// It reads records and the engine's list, decides what happened to each object, and starts
// jobs for the work. It creates nothing but records of what another runtime made, and itself
// removes only objects without a record.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/pod/exits"
	"github.com/berthrun/berth/internal/pod/podnet"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
	"golang.org/x/sync/errgroup"
)

// parallel is how many objects recovery works on at once.
const parallel = 8

// Jobs starts the jobs by which recovery finishes what is under way. No method waits for its
// job; the intent is in the record.
type Jobs interface {
	StopSandbox(ctx context.Context, rec *record.Sandbox)
	RemoveSandbox(ctx context.Context, rec *record.Sandbox)
	// StopContainer stops a container that has left to exit by itself.
	StopContainer(ctx context.Context, rec *record.Container, left time.Duration)
	RemoveContainer(ctx context.Context, rec *record.Container)
}

// Images finds the images of containers that another runtime made; see image.Store.
type Images interface {
	Get(ctx context.Context, ref string) (*image.Image, error)
}

// Options are the parts and limits of a recovery.
type Options struct {
	Engine      engine.Engine
	Images      Images
	Records     *record.Store
	Tombstones  *record.Tombstones
	Attachments *podnet.Attachments
	Exits       *exits.Recorder
	Jobs        Jobs
	// Calls are those of the jobs: a call that hangs blocks its object here, too.
	Calls *keyed.Calls
	// StateDir is on tmpfs and holds the file that says which boot was entered. BootID
	// distinguishes one boot of the machine from the next.
	StateDir, BootID string
	Disk             store.Disk
	Log              *slog.Logger
	// Observer counts what has no record, nil for nothing.
	Observer Observer
	// Step bounds the removal of one object that has no record. Settle is how long to wait
	// for the exit of a container that is found dead; see pod.Limits.
	Step, Settle time.Duration
	// Background has the goroutines that continue after Run.
	Background *sync.WaitGroup
	// After, if not nil, is closed when the clean-up may begin: it reads a file or more of every pod.
	After <-chan struct{}
}

// Observer counts objects that no record owns: of kind "sandbox", "container", "attachment" or "files".
type Observer interface {
	LeakFound(kind string)
	// LeakRepaired is called when such an object is removed.
	LeakRepaired(kind string)
}

// The kinds of an attachment without a sandbox, and of files of sandboxes and containers, for the Observer.
const (
	attachmentKind = "attachment"
	filesKind      = "files"
)

// leak counts an object that no record owns. The returned function counts its removal, unless that has failed.
func (r *recovery) leak(kind string) (removed func(error)) {
	if r.Observer == nil {
		return func(error) {}
	}
	r.Observer.LeakFound(kind)
	return func(err error) {
		if err == nil {
			r.Observer.LeakRepaired(kind)
		}
	}
}

// recovery compares the records with the engine's objects.
type recovery struct {
	Options
	// endRecheck ends the recheck that began last.
	endRecheck atomic.Pointer[context.CancelFunc]
	// starts has the ids of containers whose start an earlier berth began, and of which the engine has not
	// reported yet whether they have started.
	starts sync.Map
}

// Run reconciles the records with the objects of the engine. Work that needs the engine or the
// network continues in the background, as jobs, until background ends. All that requests read
// is correct when Run returns. ctx bounds only Run.
func Run(ctx, background context.Context, opts Options) error {
	return (&recovery{Options: opts}).run(ctx, background)
}

func (r *recovery) run(ctx, background context.Context) error {
	if err := r.enterBoot(); err != nil {
		return err
	}
	if err := r.adoptFormer(ctx); err != nil {
		return err
	}
	if err := exits.Listen(background, r.Engine, r.Exits, r.recheck, r.Background); err != nil {
		return err
	}
	actual, err := r.Engine.List(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the objects of the engine: %w", err)
	}
	found := byID(actual)
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, rec := range r.Records.Containers.All() {
		g.Go(func() error {
			errs.Protect("recovery of container "+rec.ID, func() { r.recoverContainer(background, rec, found[rec.ID]) })
			return nil
		})
	}
	err = g.Wait() // not before: the stop of a sandbox reads the states of its containers
	for _, rec := range r.Records.Sandboxes.All() {
		g.Go(func() error {
			errs.Protect("recovery of sandbox "+rec.ID, func() { r.recoverSandbox(background, rec, found[rec.ID], whileDown) })
			return nil
		})
	}
	err = errors.Join(err, g.Wait())
	r.stopSharedNames(background) // not before: what was lost keeps no name
	if ids := unknownOf(r.Records.Containers.All(), r.Records.Sandboxes.All(), found); len(ids) > 0 {
		r.Background.Go(func() {
			errs.Protect("look at what the engine did not report", func() { r.recheckThose(background, ids) })
		})
	}
	r.Background.Go(func() {
		if r.After != nil {
			select {
			case <-r.After:
			case <-background.Done():
				return
			}
		}
		errs.Protect("clean-up after the start", func() { r.clean(background, actual) })
	})
	return err
}

func byID(actual []engine.Actual) map[string]engine.Actual {
	found := make(map[string]engine.Actual, len(actual))
	for _, a := range actual {
		found[a.ID] = a
	}
	return found
}
