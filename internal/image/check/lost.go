package check

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
)

// archiveWait is how long a lost image waits until an archive is imported again. After that the import continues in the background:
// a file that changes all the time is never read.
const archiveWait = 5 * time.Minute

// checkLost reports the images that starts have lost and that are not back.
func (r *run) checkLost(ctx context.Context) error {
	for _, gone := range r.Lost.Images() {
		if ctx.Err() != nil {
			break
		}
		damage := image.Damage{
			Object: "image", Digest: gone.Target.Digest, Images: gone.Called(), Containers: []string{},
			Problem: "a start of berth has lost it: its content was damaged or missing",
		}
		r.restoreLost(ctx, gone, &damage)
		r.found(damage)
	}
	return context.Cause(ctx)
}

// restoreLost brings a lost image back from a registry if the check repairs. It first waits for an archive that is imported again.
func (r *run) restoreLost(ctx context.Context, gone lost.Image, damage *image.Damage) {
	// todo is for an image that berth does not bring back by itself.
	todo := "pull it, import its archive, put the archive into a directory of image.import_dirs, or remove its names: berth image rm " + strings.Join(damage.Images, " ")
	switch {
	case r.fetches(imageKey(gone)):
		damage.Advice = "berth brings it back in the background (berth jobs); to give it up, remove its names: berth image rm " + strings.Join(damage.Images, " ")
		return
	case !r.repair:
		damage.Advice = "run the check with --repair; if no archive of image.import_dirs and no registry has it: " + todo
		return
	}
	called := calledBy(gone)
	r.stages.Say("wait for the archive", "the import of an archive of image.import_dirs that had "+called[0])
	waits, cancel := context.WithTimeout(ctx, archiveWait)
	awaitErr := r.Archives.AwaitLost(waits, called)
	cancel()
	if _, still := r.Lost.Get(gone.Target.Digest); !still {
		damage.Repaired, damage.Repair = true, "imported again from an archive of image.import_dirs"
		return
	}
	if awaitErr != nil {
		damage.Advice = "berth imports an archive that had it (berth jobs): run the check again after that"
		return
	}
	r.meter.Stage(image.CheckFetching, 0)
	err := r.Store.Restore(ctx, gone, func(p image.Progress) { r.stages.Say("pull an image again", progress.WaitsFor("a registry", p)) })
	if err == nil {
		r.Lost.Forget(gone.Target.Digest)
		damage.Repaired, damage.Repair = true, "pulled again"
		return
	}
	damage.Advice = fmt.Sprintf("no archive of image.import_dirs has brought it back, and it cannot be pulled: %s; %s", errs.Message(err), todo)
}

// calledBy are all names of a lost image.
func calledBy(gone lost.Image) []string {
	var all []string
	for _, key := range gone.Names {
		name, _ := names.OfKey(key)
		all = append(all, name)
	}
	return all
}

// imageKey is what a lost image is wanted as. Two may have the same tag.
func imageKey(gone lost.Image) string { return "image " + gone.Target.Digest.String() }

// fetches reports whether an object is being fetched in the background, or waits for it.
func (c *Checker) fetches(as string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted[as]
}
