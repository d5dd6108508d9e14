package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/store"
)

// A check or a start finds damaged content. The checker fetches it again in the background if a registry may have it: one
// object at a time, while no pull runs, so that pods do not wait for it. A pull that starts ends the fetch, and the checker
// repeats the fetch after the pull. Each fetch is a job. If the registry does not answer, the job tries again after minWait,
// then after twice the time up to maxWait, maxTries times in all.
const (
	minWait  = 10 * time.Second
	maxWait  = time.Hour
	maxTries = 24
)

// retryable reports whether a later attempt may succeed: a registry did not answer, or the disk was full.
func retryable(err error) bool {
	return errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Exhausted) || errors.Is(err, errs.Deadline)
}

// WantBlob fetches a blob again in the background if its file is damaged or missing. Nothing happens if it is being
// fetched.
func (c *Checker) WantBlob(dgst digest.Digest) { c.wantBlob(dgst, 0) }

// wantBlob is WantBlob after a time.
func (c *Checker) wantBlob(dgst digest.Digest, after time.Duration) {
	job := image.Job{Kind: "fetch blob again", Key: dgst.String(), ID: dgst.Encoded()}
	c.want(wanted{
		as: dgst.String(), job: job, after: after, ready: func(context.Context, image.Stage) error { return nil },
		fetch: func(ctx context.Context, at *image.Stages) error { return c.mendInBackground(ctx, at, dgst) }, over: func(error) {},
	})
}

// WantImage brings an image back in the background that a start has lost: an archive of the host that has it is imported
// again, else the image is pulled.
func (c *Checker) WantImage(gone lost.Image) {
	all, target := calledBy(gone), gone.Target.Digest
	c.want(wanted{
		as:  imageKey(gone),
		job: image.Job{Kind: "pull image again", Key: gone.Names[0], ID: target.Encoded()},
		ready: func(ctx context.Context, at image.Stage) error {
			at("wait for the archive", "the import of an archive of image.import_dirs", time.Now().Add(archiveWait))
			waits, cancel := context.WithTimeout(ctx, archiveWait)
			defer cancel()
			if err := c.Archives.AwaitLost(waits, all); err != nil && waits.Err() == nil || ctx.Err() != nil {
				return err
			}
			return nil // else a registry is asked
		},
		fetch: func(ctx context.Context, at *image.Stages) error {
			wanted, ok := c.Lost.Get(target)
			if !ok {
				return nil // it is back, or somebody has removed its names
			}
			return c.Store.Restore(ctx, wanted, func(p image.Progress) { at.Say(p.Stage, progress.WaitsFor("a registry", p)) })
		},
		over: func(err error) {
			if err != nil {
				c.Lost.GiveUp(target)
				return
			}
			c.Lost.Forget(target)
		},
	})
}

// wanted is an object that is fetched in a job of its own.
type wanted struct {
	// as is what no two objects have.
	as    string
	job   image.Job
	after time.Duration
	// ready returns when the first fetch may begin.
	ready func(context.Context, image.Stage) error
	fetch func(context.Context, *image.Stages) error
	// over is called when the job has ended. It is not called when the store closes: the next start continues then.
	over func(error)
}

// want fetches an object.
func (c *Checker) want(w wanted) {
	c.mu.Lock()
	known := c.wanted[w.as]
	c.wanted[w.as] = true
	c.mu.Unlock()
	if known {
		return
	}
	c.Background.Go(func(ctx context.Context) {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.wanted, w.as)
		}()
		err := c.Jobs.Run(ctx, w.job, func(ctx context.Context, at image.Stage) error {
			if err := w.ready(ctx, at); err != nil {
				return err
			}
			return c.retry(database.WithNamespace(ctx), at, w.after, w.fetch)
		})
		if ctx.Err() != nil {
			return
		}
		w.over(err)
		if err != nil {
			c.Log.Warn("cannot fetch in the background what is damaged; pull or import the image again, or run berth image fsck --repair",
				"job", w.job.Kind, "object", w.job.Key, "error", err)
		}
	})
}

// retry calls fetch until it succeeds, fails for good, or ctx ends.
func (c *Checker) retry(ctx context.Context, at image.Stage, wait time.Duration, fetch func(context.Context, *image.Stages) error) error {
	why := "a registry that did not answer"
	for try := 1; ; try++ {
		if wait > 0 {
			at("wait to try again", why, time.Now().Add(wait))
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		err := c.inTurn(ctx, at, fetch)
		if err == nil || ctx.Err() != nil || !retryable(err) || try == maxTries {
			return err
		}
		why = errs.Message(err)
		wait = min(max(2*wait, minWait), maxWait)
	}
}

// errPull ends a fetch for a pull.
var errPull = errors.New("a pull goes first")

// inTurn calls fetch when no pull runs and nothing else is fetched again.
func (c *Checker) inTurn(ctx context.Context, at image.Stage, fetch func(context.Context, *image.Stages) error) error {
	for {
		at("wait for its turn", "pulls, and other content that is fetched again", time.Now().Add(maxWait))
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err := c.whileIdle(ctx, at, fetch)
		<-c.turn
		if ctx.Err() != nil || !errors.Is(err, errPull) {
			return err
		}
	}
}

// whileIdle calls fetch when no pull runs. A pull that begins ends its context with errPull.
func (c *Checker) whileIdle(ctx context.Context, at image.Stage, fetch func(context.Context, *image.Stages) error) error {
	if err := c.Store.AwaitIdle(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer c.Store.OnPull(func() { cancel(errPull) })()
	return fetch(ctx, image.NewStages(at))
}

// mendInBackground fetches a blob again, unless it is whole or of no image.
func (c *Checker) mendInBackground(ctx context.Context, at *image.Stages, dgst digest.Digest) error {
	images, err := c.Store.Inventory(ctx)
	if err != nil {
		return err
	}
	all := imagesWith(images, dgst)
	pulled := slices.DeleteFunc(slices.Clone(all), func(img store.Stored) bool { return img.Pinned })
	info, err := c.DB.Content.Info(ctx, dgst)
	missing := errdefs.IsNotFound(err)
	switch {
	case err != nil && !missing:
		return fmt.Errorf("cannot look up blob %s: %w", dgst, err)
	case len(all) == 0:
		return nil // its images are removed
	case missing:
		info = content.Info{Digest: dgst, Size: sizeIn(all, dgst)}
	default:
		problem := c.DB.FileProblem(info)
		if problem == "" {
			problem, err = readBlob(ctx, c.DB.Paths, info, func(int64) {})
		}
		if err != nil || problem == "" {
			return err
		}
		if from := database.PreloadedFrom(info); from != "" {
			return fmt.Errorf("it is used in place: write %s again: %w", from, errs.Invalid)
		}
	}
	begin := func(source string) func(int64) {
		var got int64
		progress := func(n int64) {
			got += n
			at.Say("fetch", fmt.Sprintf("%s, %d of %d bytes", source, got, info.Size))
		}
		progress(0)
		return progress
	}
	fetch := func(ctx context.Context, to registry.Target) error {
		from, err := c.fetchAgain(ctx, info, all, pulled, to, begin)
		if err != nil {
			return err
		}
		c.Log.Info("fetched a damaged blob again", "blob", dgst, "from", from)
		return nil
	}
	if !missing {
		return fetch(ctx, replacement{c.DB.BlobPath(dgst)})
	}
	return c.DB.WithLease(ctx, func(ctx context.Context) error { return fetch(ctx, c.DB) })
}

// sizeIn is the size that images say a layer's blob has.
func sizeIn(images []store.Stored, dgst digest.Digest) int64 {
	for _, img := range images {
		if img.Tree == nil {
			continue
		}
		if i := slices.IndexFunc(img.Tree.Layers, func(l imagespec.Descriptor) bool { return l.Digest == dgst }); i >= 0 {
			return img.Tree.Layers[i].Size
		}
	}
	return 0
}
