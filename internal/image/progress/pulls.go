package progress

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/keyed"
)

// Terms are what callers must have in common to share a pull of an image.
type Terms struct {
	Auth image.Auth
	// Policy names what decides whether the image may be used, "" in a store without a policy.
	Policy string
	// Snapshotter is the proxy snapshotter that gets the layers, "" for none.
	Snapshotter string
	// Platform is the one for which the image is pulled, "" for the node's.
	Platform string
}

// Pulls are the running pulls of a store. Callers that want the same image on the same terms
// share one. The zero value is ready.
type Pulls struct {
	// Observer counts the pulls, nil for nothing. Set it before the first pull.
	Observer image.PullObserver
	// Jobs shows the pulls, nil for nobody. Set it before the first pull.
	Jobs image.Jobs

	flights keyed.Flights[Feed, string]
	busy    busy
}

// Do joins the pull of named with the terms, or starts it, which calls pull. It returns the id that
// pull returns. report, which may be nil, gets the progress. A caller leaves when its ctx ends.
// The context of pull ends when the last caller has left, which waits until pull has returned.
func (p *Pulls) Do(ctx context.Context, named reference.Named, terms Terms, report func(image.Progress), pull func(context.Context, *Meter) (id string, err error)) (string, error) {
	return p.do(ctx, named, terms, report, func(ctx context.Context, feed *Feed) (string, error) {
		meter := feed.newMeter()
		return p.counted(named.String(), meter.Fetched, func() (string, error) { return p.traced(ctx, named, meter, feed, pull) })
	})
}

// Search is a pull whose image may be at one of several registries. To the observer it is one pull, with the last result
// and with what all its parts have fetched. Each part is a job and has a trace, as other pulls.
type Search struct {
	pulls   *Pulls
	feed    *Feed
	fetched atomic.Int64
}

// Search joins the search of the candidates with the terms, or starts it, which calls search. The rest is as with Do.
func (p *Pulls) Search(
	ctx context.Context, candidates []reference.Named, terms Terms, report func(image.Progress), search func(context.Context, *Search) (id string, err error),
) (string, error) {
	names := make([]string, len(candidates))
	for i, named := range candidates {
		names[i] = named.String()
	}
	what := strings.Join(names, " ")
	return p.share(ctx, "search "+pullKey(what, terms), report, func(ctx context.Context, feed *Feed) (string, error) {
		s := &Search{pulls: p, feed: feed}
		return p.counted(what, s.fetched.Load, func() (string, error) { return search(ctx, s) })
	})
}

// Do is Pulls.Do for one of the candidates.
func (s *Search) Do(ctx context.Context, named reference.Named, terms Terms, pull func(context.Context, *Meter) (id string, err error)) (string, error) {
	return s.pulls.do(ctx, named, terms, s.feed.Report, func(ctx context.Context, feed *Feed) (string, error) {
		meter := feed.newMeter()
		id, err := s.pulls.traced(ctx, named, meter, feed, pull)
		s.fetched.Add(meter.Fetched())
		return id, err
	})
}

// do shares a pull, which is a job.
func (p *Pulls) do(ctx context.Context, named reference.Named, terms Terms, report func(image.Progress), pull func(context.Context, *Feed) (string, error)) (string, error) {
	return p.share(ctx, pullKey(named.String(), terms), report, func(ctx context.Context, feed *Feed) (id string, err error) {
		defer p.busy.begin()()
		jobs := p.Jobs
		if jobs == nil {
			jobs = image.Unlisted{}
		}
		err = jobs.Run(ctx, jobOf(named, feed), func(ctx context.Context, at image.Stage) (err error) {
			stages := image.NewStages(at)
			defer feed.Watch(func(now image.Progress) {
				stages.SayMoved(stageOfJob(now.Stage), waitsFor(cmp.Or(now.From, "the registry "+reference.Domain(named)), now), now.Stage == Waiting)
			})()
			id, err = pull(ctx, feed)
			return err
		})
		return id, err
	})
}

// share joins the run of a key, or starts it, and waits for its result.
func (p *Pulls) share(ctx context.Context, key string, report func(image.Progress), run func(context.Context, *Feed) (string, error)) (string, error) {
	flight, err := p.flights.Join(ctx, key, run)
	if err != nil {
		return "", err
	}
	flight.Shared.callers.Add(1)
	defer flight.Shared.callers.Add(-1)
	defer flight.Shared.Watch(report)()
	select {
	case <-flight.Done():
		flight.Leave()
		return flight.Result()
	case <-ctx.Done():
		if last := flight.Leave(); last {
			<-flight.Done() // what the pull made is gone when its last caller returns
		}
		return "", context.Cause(ctx)
	}
}

// jobOf returns the job of a pull. Pulls of one image with different credentials or policies run at the same time, so the key does not
// name one of them. The ID is random: an ID that is computed from the credentials would help to guess them.
func jobOf(named reference.Named, feed *Feed) image.Job {
	return image.Job{Kind: "pull image", Key: named.String(), ID: strings.ToLower(rand.Text()), Waited: true, Beside: true, Live: feed.live}
}

// stageOfJob is the stage of a job at a stage of its pull. All bytes are there when the image is recorded.
func stageOfJob(stage string) string {
	if stage == Done {
		return "recording"
	}
	return stage
}

// WaitsFor says what a pull waits for at a stage, and how far it is. from is what it fetches from.
func WaitsFor(from string, now image.Progress) string {
	what := waitsFor(from, now)
	if now.Total == 0 || now.Stage == Done {
		return what
	}
	return fmt.Sprintf("%s, %d of %d bytes", what, now.Done, now.Total)
}

// waitsFor is WaitsFor without numbers that grow.
func waitsFor(from string, now image.Progress) string {
	const limits = "other downloads of the node (image.max_total_downloads, image.download_rate_mib)"
	switch {
	case now.Stage == Waiting && now.Behind > 0 && now.Limited:
		return fmt.Sprintf("%s, and %s", ofOthers(now.Behind), limits)
	case now.Stage == Waiting && now.Behind > 0:
		return ofOthers(now.Behind)
	case now.Stage == Waiting:
		return limits
	case now.Stage == Unpacking:
		return "the disk"
	case now.Stage == Done:
		return "the record of the image"
	}
	return from
}

// ofOthers names layers that other pulls fetch.
func ofOthers(layers int) string {
	if layers == 1 {
		return "1 layer that another pull fetches"
	}
	return fmt.Sprintf("%d layers that other pulls fetch", layers)
}

// counted calls pull, and reports its beginning and its end to the observer. fetched is how many bytes it has fetched.
func (p *Pulls) counted(what string, fetched func() int64, pull func() (string, error)) (id string, err error) {
	if p.Observer == nil {
		return pull()
	}
	began := time.Now()
	p.Observer.PullBegan()
	err = errs.Guard("pull of "+what, func() error { // its end counts even if it panics
		id, err = pull()
		return err
	})
	p.Observer.PullEnded(fetched(), time.Since(began), err)
	return id, err
}

// traced calls pull, and traces it if the observer does.
func (p *Pulls) traced(ctx context.Context, named reference.Named, meter *Meter, feed *Feed, pull func(context.Context, *Meter) (string, error)) (id string, err error) {
	ended := func(int64, error) {}
	if tracer, ok := p.Observer.(image.PullTracer); ok {
		ctx, ended = trace(ctx, tracer, named, meter, feed)
	}
	err = errs.Guard("pull of "+named.String(), func() error {
		id, err = pull(ctx, meter)
		return err
	})
	ended(meter.Fetched(), err)
	return id, err
}

// trace begins the trace of a pull, which gets each stage that the meter reports. It returns the context of the pull, and
// what to call at its end.
func trace(ctx context.Context, tracer image.PullTracer, named reference.Named, meter *Meter, feed *Feed) (context.Context, func(int64, error)) {
	ctx, stage, ended := tracer.PullTraced(ctx, named.String())
	if ended == nil {
		return ctx, func(int64, error) {}
	}
	last := ""
	meter.report = func(p image.Progress) { // the meter calls it under its lock
		if p.Stage != last {
			last = p.Stage
			stage(last)
		}
		feed.Report(p)
	}
	return ctx, ended
}

// pullKey is the key of a pull, which differs by its terms, and keeps no credentials.
func pullKey(what string, terms Terms) string {
	auth := terms.Auth
	fields := []string{
		terms.Policy, auth.Username, auth.Password, auth.Auth, auth.ServerAddress, auth.IdentityToken, auth.RegistryToken, terms.Snapshotter, terms.Platform,
	}
	return fmt.Sprintf("%s %x", what, sha256.Sum256([]byte(strings.Join(fields, "\x00"))))
}
