// Package pod holds the rules: the jobs that make and remove sandboxes and containers, and
// the order of their steps.
//
// It drives an engine, an image store and a network through their interfaces and knows no
// backend. Below it, record has the records, exits records exits, recovery reconciles records
// with the engine's objects, podnet attaches sandboxes to the network, view shows records, and
// forward forwards ports. None of them imports package pod.
package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/pod/exits"
	"github.com/berthrun/berth/internal/pod/forward"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/plugins"
	"github.com/berthrun/berth/internal/pod/podnet"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/pod/recovery"
	"github.com/berthrun/berth/internal/pod/retry"
	"github.com/berthrun/berth/internal/pod/view"
	"github.com/berthrun/berth/internal/store"
)

// Images finds the images that containers are made from; see image.Store. It may be an image.PlatformStore.
type Images interface {
	Get(ctx context.Context, ref string) (*image.Image, error)
}

// Options configure a Service.
type Options struct {
	Engine  engine.Engine
	Images  Images
	Network network.Network
	// NRI has the plugins that see and change pods, nil for none. Close closes it.
	NRI *nri.Host
	// StateDir is on tmpfs and holds records; RootDir is on disk and holds
	// tombstones, attachments still to be undone and the sandboxes' files.
	StateDir, RootDir string
	// Records are those of StateDir and RootDir, nil for New to open them.
	Records *Records
	// BootID distinguishes one boot of the machine from the next.
	BootID string
	// Log gets the results of background work. Nil means slog.Default().
	Log *slog.Logger
	// Disk writes the records. Nil means store.FileSystem{}.
	Disk store.Disk
	// Limits bound jobs; zero fields take their defaults.
	Limits Limits
	// ShowSecrets shows the values of environments in verbose statuses.
	ShowSecrets bool
	// Observer counts what happens, nil for none.
	Observer Observer
	// Tracer follows jobs in traces, nil for none.
	Tracer job.Tracer
	// After, if not nil, is closed when work may begin that no request waits for.
	After <-chan struct{}
	// Platforms returns the platforms of images by the runtime handlers that have one; see image.ParsePlatform. A pod keeps
	// that with which it was created. Nil means none.
	Platforms func() map[string]string
}

// Observer counts what happens to pods. It must not block.
type Observer interface {
	job.Observer
	recovery.Observer
	// JobResumed is called with the kind of a job that the recovery has started.
	JobResumed(job string)
	// ContainerExited is called with the reason of each exit that is recorded.
	ContainerExited(reason string)
}

// Records are what a start reads of pods, before it knows their engine and network.
type Records struct {
	pods        *record.Store
	events      *view.EventSource
	attachments podnet.Records
}

// OpenRecords reads the records of sandboxes and containers; those of attachments are read when they are needed. One
// that cannot be read is moved to the quarantine and logged.
func OpenRecords(opts record.Options) (*Records, error) {
	if opts.Disk == nil {
		opts.Disk = store.FileSystem{}
	}
	pods, source, err := view.OpenRecords(opts)
	if err != nil {
		return nil, err
	}
	return &Records{pods, source, podnet.OpenRecords(pods, filepath.Join(opts.RootDir, "attachments"))}, nil
}

// Limits are how long work may take. They do not bound a container's own life
// or its grace period.
type Limits struct {
	// Stage and Total end a job that makes something: 10 and 60 minutes.
	Stage, Total time.Duration
	// Step bounds one step of a teardown: 2 minutes.
	Step time.Duration
	// Grace is how long a cancelled call may take to return before it is left
	// alone: 10 seconds.
	Grace time.Duration
	// Kill is how long a container may take to exit after SIGKILL: 10 seconds.
	Kill time.Duration
	// Dial is how long a forwarded port may take to be answered: 10 seconds.
	Dial time.Duration
	// Settle is how long to wait for the exit of a container that the engine has
	// as stopped: 30 seconds. Before an engine reports an exit, it may take 10
	// seconds to end what runs on, and 10 to complete the log.
	Settle time.Duration
	// RetryMin and RetryMax bound the pauses between attempts to finish a
	// teardown: 5 seconds and 5 minutes.
	RetryMin, RetryMax time.Duration
	// Batch is how long tombstones are collected before they are written: half
	// a second.
	Batch time.Duration
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Stage: cmp.Or(l.Stage, 10*time.Minute), Total: cmp.Or(l.Total, time.Hour),
		Step: cmp.Or(l.Step, 2*time.Minute), Grace: cmp.Or(l.Grace, 10*time.Second),
		Kill: cmp.Or(l.Kill, 10*time.Second), Dial: cmp.Or(l.Dial, 10*time.Second), Settle: cmp.Or(l.Settle, 30*time.Second),
		RetryMin: cmp.Or(l.RetryMin, 5*time.Second), RetryMax: cmp.Or(l.RetryMax, 5*time.Minute),
		Batch: cmp.Or(l.Batch, 500*time.Millisecond),
	}
}

// Service joins the parts of the rules, one for each concern. All methods are safe for
// concurrent use; ids may be unambiguous prefixes; errors carry a kind of package errs.
// Messages that it returns share memory with records: callers must not change them.
type Service struct {
	*Sandboxes
	*Containers
	*Sessions
	*forward.Forwarder
	*view.View
	*view.EventSource
	*view.CAdvisor

	engine  engine.Engine
	network network.Network
	log     *slog.Logger
	jobs    *job.Table
	// jobTimes are the limits of jobs that make something.
	jobTimes atomic.Pointer[job.Limits]
	// retries are of teardowns and of stops.
	retries *retry.Timers
	exits   *exits.Recorder
	plugins *plugins.Plugins
	// observer may be nil.
	observer Observer

	background sync.WaitGroup
	stop       context.CancelFunc
}

// New reads the records, reconciles them with the engine's objects, and returns a Service
// that is ready for requests. Teardowns that an earlier process did not finish continue in
// the background.
//
// One bad record never makes it fail: it is moved to RootDir/quarantine and logged. ctx
// bounds New only.
func New(ctx context.Context, opts Options) (*Service, error) {
	opts.Limits = opts.Limits.withDefaults()
	if opts.Disk == nil {
		opts.Disk = store.FileSystem{}
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	s := &Service{
		engine: opts.Engine, network: opts.Network, log: opts.Log, observer: opts.Observer,
		retries: retry.New(opts.Limits.RetryMin, opts.Limits.RetryMax),
	}
	s.SetJobLimits(opts.Limits.Stage, opts.Limits.Total)
	s.jobs = job.NewTable(s.jobLimits, resolveConflict, s.logFailure, s.logStage, s.logSlowStage)
	if opts.Observer != nil {
		s.jobs.Observe(opts.Observer)
	}
	if opts.Tracer != nil {
		s.jobs.Trace(opts.Tracer)
	}
	resume, err := s.join(opts)
	if err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	resume.Tombstones.Start(background, &s.background)
	if err := recovery.Run(ctx, background, *resume); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot recover the pods of an earlier run: %w", err), s.Close(ctx))
	}
	if err := s.plugins.Start(s.Containers); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// join opens the records and makes the parts. It returns the options of the recovery.
func (s *Service) join(opts Options) (*recovery.Options, error) {
	if opts.Records == nil {
		var err error
		opts.Records, err = OpenRecords(record.Options{StateDir: opts.StateDir, RootDir: opts.RootDir, Disk: opts.Disk, Log: opts.Log})
		if err != nil {
			return nil, err
		}
	}
	records, source := opts.Records.pods, opts.Records.events
	calls := keyed.NewCalls(opts.Limits.Grace)
	attachments := podnet.New(opts.Records.attachments, podnet.Options{Network: opts.Network, Calls: calls, Log: opts.Log})
	tombstones := record.NewTombstones(records, record.TombstoneOptions{
		Dir: filepath.Join(opts.RootDir, "tombstones"), Batch: opts.Limits.Batch, Retry: opts.Limits.RetryMin,
	})
	s.plugins = plugins.New(plugins.Options{Host: opts.NRI, Engine: opts.Engine, Records: records, Log: opts.Log})
	if opts.Platforms == nil {
		opts.Platforms = func() map[string]string { return nil }
	}
	w := &worker{
		plugins: s.plugins, ended: s.containerEnded,
		engine: opts.Engine, records: records, tombstones: tombstones, jobs: s.jobs, calls: calls, retries: s.retries,
		limits: opts.Limits, bootID: opts.BootID, log: opts.Log,
	}
	s.exits = exits.New(exits.Options{Records: records, Tombstones: tombstones, Log: opts.Log, SandboxEnded: s.sandboxEnded, ContainerEnded: s.containerEnded})
	s.Containers = &Containers{worker: w, images: opts.Images, exits: s.exits, graces: newGracePeriods()}
	s.Sandboxes = &Sandboxes{worker: w, containers: s.Containers, network: attachments, platforms: opts.Platforms}
	s.Sessions = &Sessions{engine: opts.Engine, records: records}
	s.Forwarder = forward.New(records, opts.Limits.Dial)
	s.EventSource = source
	s.View = view.New(opts.Engine, records, source, s.jobs)
	s.SetShowSecrets(opts.ShowSecrets)
	s.CAdvisor = view.NewCAdvisor(opts.Engine, records)
	return &recovery.Options{
		Engine: opts.Engine, Images: opts.Images, Records: records, Tombstones: tombstones, Attachments: attachments, Exits: s.exits,
		Jobs: resumed{detached{s.Sandboxes, s.Containers, true}, opts.Observer}, Observer: opts.Observer, Calls: calls, StateDir: opts.StateDir, BootID: opts.BootID, Disk: opts.Disk,
		Log: opts.Log, Step: opts.Limits.Step, Settle: opts.Limits.Settle, Background: &s.background, After: opts.After,
	}, nil
}

// containerEnded reports an exit that is recorded.
func (s *Service) containerEnded(rec *record.Container) {
	s.plugins.ContainerEnded(rec)
	if s.observer == nil {
		return
	}
	reason := rec.Reason
	if rec.StartError() != "" { // it never ran: a failed start has killed it
		reason = engine.ReasonStartError
	}
	s.observer.ContainerExited(reason)
}

// sandboxEnded stops a sandbox whose own process has ended.
func (s *Service) sandboxEnded(rec *record.Sandbox) {
	detached{s.Sandboxes, s.Containers, false}.StopSandbox(context.Background(), rec)
}

// Close ends jobs and background work and leaves every pod as it is; what was
// under way is finished or torn down by the next New. ctx bounds the wait.
func (s *Service) Close(ctx context.Context) error {
	s.CloseEvents()
	s.retries.Close()
	s.exits.Close()
	s.plugins.Unblock()
	err := s.jobs.Close(ctx)
	s.stop()
	ended := make(chan struct{})
	go func() {
		s.background.Wait()
		s.plugins.Close()
		close(ended)
	}()
	select {
	case <-ended:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("cannot wait for background work: %w", context.Cause(ctx)))
	}
}
