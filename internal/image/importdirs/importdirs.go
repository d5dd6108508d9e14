// Package importdirs imports the archives of directories of the host in the background: what is there when the store
// opens, and what appears later. It imports one archive at a time, as a job, and reads an archive again only when the
// file has changed; see record for what counts as a change. It knows no store, only a function that imports.
package importdirs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

const (
	// defaultSettle is how long a file must stay as it is before it is read: somebody may still copy it.
	defaultSettle = 3 * time.Second
	// An archive that cannot be imported for a reason of the host, such as a full disk, is read again after minWait, then
	// after twice the time, up to maxWait.
	minWait = 10 * time.Second
	maxWait = time.Hour
)

// Rules say what is imported. They can change while an Importer runs.
type Rules struct {
	// Dirs are directories with archives. A missing directory has none.
	Dirs []string
	// Pin protects the images from the kubelet's garbage collection.
	Pin bool
}

// Config of an Importer.
type Config struct {
	// Root is the directory of the image store, which has the list of what was imported.
	Root string
	// Import imports one archive, as image.Store does.
	Import func(ctx context.Context, archive io.Reader, pin bool, progress func(image.Progress)) ([]image.Image, error)
	// Pinned returns the ids of the images that are pinned. Unpin takes the pin off images.
	Pinned func() map[string]bool
	Unpin  func(ctx context.Context, ids []string) error
	// AwaitIdle returns when no pull runs.
	AwaitIdle func(ctx context.Context) error
	// Settle is how long a file must stay as it is before it is read; 3 s if 0.
	Settle time.Duration
	Jobs   image.Jobs
	Log    *slog.Logger
}

// Importer imports archives. Its fields below rules belong to Run.
type Importer struct {
	cfg   Config
	rules atomic.Pointer[Rules]
	// wake is filled when something may have to be imported.
	wake chan struct{}

	// list is read once; see imported.
	list     *list
	readOnce sync.Once
	// againMu guards again.
	againMu sync.Mutex
	again   waiting
	// failures has a message for each archive that is there and cannot be imported.
	failures atomic.Pointer[[]string]

	// seen is since when each file that is not imported yet is as it is.
	seen map[string]sighting
	// later has the files that could not be imported for a reason that may go away.
	later map[string]attempt
	// faulty has the directories that cannot be read, with the error that was logged.
	faulty map[string]string
}

// attempt is a failed import that is repeated. Nothing repeats it where at is zero, unless the file changes.
type attempt struct {
	of   state
	wait time.Duration
	at   time.Time
	// why is the error.
	why string
}

// New makes an Importer, which does nothing before Run.
func New(cfg Config, rules Rules) *Importer {
	if cfg.Settle == 0 {
		cfg.Settle = defaultSettle
	}
	i := &Importer{cfg: cfg, wake: make(chan struct{}, 1), seen: map[string]sighting{}, later: map[string]attempt{}, faulty: map[string]string{}}
	i.again = waiting{begun: make(chan struct{}), paths: map[string]chan struct{}{}}
	i.rules.Store(&rules)
	return i
}

// SetRules makes other rules hold for archives that are imported from now on.
func (i *Importer) SetRules(rules Rules) {
	i.rules.Store(&rules)
	i.look()
}

// look has Run look at the directories.
func (i *Importer) look() {
	select {
	case i.wake <- struct{}{}:
	default: // a look is due already
	}
}

// imported is the list of what was imported. The store is open when it is first called: before, something else may be in the
// place of the list.
func (i *Importer) imported() *list {
	i.readOnce.Do(func() { i.list = readList(i.cfg.Root, i.cfg.Log) })
	return i.list
}

// Run imports archives until ctx ends. lost are names of images that the store has lost: it reads archives that had one again.
func (i *Importer) Run(ctx context.Context, lost []string) {
	i.readAgain(lost)
	defer i.settleAbsent(nil)
	var changes *watch
	defer func() { changes.close() }()
	for ctx.Err() == nil {
		dirs := i.rules.Load().Dirs
		if len(dirs) > 0 && changes == nil {
			changes = newWatch(i.look, i.cfg.Log)
		}
		changes.place(dirs)
		next := i.importAll(ctx)
		if len(dirs) > 0 && !changes.works() {
			next = sooner(next, watchless)
		}
		i.await(ctx, next)
	}
}

// await returns after next, or when something changes. If next is 0, it waits for a change alone.
func (i *Importer) await(ctx context.Context, next time.Duration) {
	var due <-chan time.Time
	if next > 0 {
		timer := time.NewTimer(next)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return
	case <-due:
		return
	case <-i.wake:
	}
	// Changes come in bursts.
	select {
	case <-ctx.Done():
	case <-time.After(burst):
	}
}

// sooner is the shorter of two times, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// importAll imports what is due, and returns how long it takes until something else may be; 0 if nothing is.
func (i *Importer) importAll(ctx context.Context) time.Duration {
	for {
		rules := i.rules.Load()
		due, next := i.scan(rules.Dirs, time.Now())
		if len(due) == 0 {
			i.noteFailures(rules.Dirs)
			return next
		}
		for _, f := range due {
			i.importOne(ctx, f, rules.Pin)
			i.settle(f.path)
			if ctx.Err() != nil || i.rules.Load() != rules {
				break
			}
		}
		if ctx.Err() != nil {
			return 0
		}
	}
}

// importOne imports an archive in a job of its own, and records what has become of it.
func (i *Importer) importOne(ctx context.Context, f file, pin bool) {
	began, cancelled := time.Now(), false
	made := record{Path: f.path, state: f.state}
	job := image.Job{Kind: "import archive", Key: f.path, ID: jobID(f.path)}
	var images []image.Image
	err := i.cfg.Jobs.Run(ctx, job, func(jobCtx context.Context, at image.Stage) (err error) {
		images, err = i.read(jobCtx, &made, pin, image.NewStages(at))
		cancelled = jobCtx.Err() != nil && ctx.Err() == nil
		if err == nil {
			i.unpinOutdated(jobCtx, made) // before the list has the new content: a kill repeats both
		}
		return err
	})
	log := i.cfg.Log.With("file", f.path)
	switch {
	case err == nil:
		i.done(f.path, made)
		if images == nil {
			log.Info("an archive has changed its time and not its content; its images are not imported again")
			return
		}
		log.Info("imported the images of an archive", "images", namesOf(images), "took", time.Since(began).Round(time.Millisecond).String())
	case ctx.Err() != nil: // the store closes, and the next start continues
	case errors.Is(err, errChanges):
		i.later[f.path] = attempt{of: f.state, at: time.Now().Add(i.cfg.Settle), why: errs.Message(err)}
		log.Info("an archive has changed while it was read; it is imported when it stays as it is")
	case cancelled:
		i.later[f.path] = attempt{of: f.state, why: errs.Message(err)}
		log.Warn("the import of an archive was cancelled; it is repeated when the file changes, or when berth starts again")
	case permanent(err):
		former, _ := i.imported().get(f.path)
		made.Error, made.Digest, made.Pinned = errs.Message(err), "", former.Pinned
		i.done(f.path, made)
		log.Error("cannot import an archive; it is read again when the file changes", "error", err)
	default:
		wait := minWait
		if last, ok := i.later[f.path]; ok && last.of == f.state {
			wait = min(2*max(last.wait, minWait/2), maxWait)
		}
		i.later[f.path] = attempt{of: f.state, wait: wait, at: time.Now().Add(wait), why: errs.Message(err)}
		log.Warn("cannot import an archive; it is tried again", "after", wait.String(), "error", err)
	}
}

// unpinOutdated unpins the images that only the former content of an archive has pinned. Else each new version would fill the disk
// for ever.
func (i *Importer) unpinOutdated(ctx context.Context, made record) {
	outdated := i.imported().outdated(made)
	if len(outdated) == 0 {
		return
	}
	log := i.cfg.Log.With("file", made.Path, "images", strings.Join(outdated, " "))
	if err := i.cfg.Unpin(ctx, outdated); err != nil {
		log.Warn("cannot unpin the images of the former content of an archive; remove them with berth image rm", "error", err)
		return
	}
	log.Info("unpinned the images of the former content of an archive")
}

// Keep notes that images are pinned by somebody else: an archive that changes does not unpin them any more.
func (i *Importer) Keep(images []image.Image) {
	ids := make([]string, len(images))
	for at := range images {
		ids[at] = images[at].ID
	}
	i.imported().keep(ids)
}

// done records what has become of an archive.
func (i *Importer) done(path string, made record) {
	delete(i.seen, path)
	delete(i.later, path)
	i.list.put(made)
}

// permanent reports whether another attempt with the same file fails as well.
func permanent(err error) bool {
	return errors.Is(err, errs.Invalid) || errors.Is(err, errs.Unsupported)
}

// namesOf are the names of images, or their ids where they have none.
func namesOf(images []image.Image) string {
	var all []string
	for _, img := range images {
		if len(img.Tags) == 0 {
			all = append(all, img.ID)
		}
		all = append(all, img.Tags...)
	}
	return strings.Join(all, " ")
}

// errChanges is the error of a file that changes while it is read.
var errChanges = fmt.Errorf("the file changes while it is read: %w", errs.State)
