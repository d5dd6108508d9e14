// Package pod holds the rules: what a sandbox and a container are, the jobs that
// make and unmake them, the order of their steps, teardown and recovery.
//
// It drives an engine, an image store and a network through their interfaces and
// knows no backend; it owns every record of sandboxes and containers.
package pod

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/pod/events"
	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/store"
)

// Images finds the images that containers are made from; see image.Store.
type Images interface {
	Get(ctx context.Context, ref string) (*image.Image, error)
}

// Options are what a Service is made from.
type Options struct {
	Engine  engine.Engine
	Images  Images
	Network network.Network
	// StateDir is on tmpfs and holds records; RootDir is on disk and holds
	// tombstones, attachments still to be undone and the sandboxes' files.
	StateDir, RootDir string
	// BootID tells one boot of the machine from the next.
	BootID string
	// Log takes what no caller is there to hear. Nil means slog.Default().
	Log *slog.Logger
	// Disk writes the records. Nil means store.FileSystem{}.
	Disk store.Disk
	// Limits bound jobs; zero fields take their defaults.
	Limits Limits
	// ShowSecrets shows the values of environments in verbose statuses.
	ShowSecrets bool
}

// Limits are how long things may take. They do not bound a container's own life
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
	// Settle is how long recovery waits for the exit of a container that is
	// found dead: 10 seconds.
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
		Kill: cmp.Or(l.Kill, 10*time.Second), Dial: cmp.Or(l.Dial, 10*time.Second), Settle: cmp.Or(l.Settle, 10*time.Second),
		RetryMin: cmp.Or(l.RetryMin, 5*time.Second), RetryMax: cmp.Or(l.RetryMax, 5*time.Minute),
		Batch: cmp.Or(l.Batch, 500*time.Millisecond),
	}
}

// Service is the rules at work. All methods are safe for concurrent use; ids may
// be unambiguous prefixes; errors carry a kind of package errs. Messages that it
// returns share memory with records: they are to be read, not changed.
type Service struct {
	opts   Options
	limits Limits
	// jobTimes are the limits of jobs that make something.
	jobTimes atomic.Pointer[job.Limits]
	// showSecrets is Options.ShowSecrets, or what has taken its place since.
	showSecrets atomic.Bool
	log         *slog.Logger

	sandboxes   *store.Dir[SandboxRecord]
	containers  *store.Dir[ContainerRecord]
	attachments *store.Dir[network.Attachment]
	tombstones  *tombstones

	jobs   *job.Table
	calls  *keyed.Calls
	ends   ends
	graces graces
	// events tells of every change of the records that clients can see.
	events *events.Hub
	// retries are of teardowns, exitRetries of exits that could not be recorded.
	retries, exitRetries *retries

	// networkGate is closed while the network collects its garbage.
	networkGate gate
	background  sync.WaitGroup
	stop        context.CancelFunc
}

// New reads the records, brings them and what really exists into line, and
// returns a Service that is ready for requests. Teardowns that an earlier
// process did not finish go on in the background.
//
// One bad record never makes it fail: it is moved to RootDir/quarantine and
// logged. ctx bounds New only.
func New(ctx context.Context, opts Options) (*Service, error) {
	limits := opts.Limits.withDefaults()
	s := &Service{
		opts: opts, limits: limits, log: opts.Log,
		calls: keyed.NewCalls(limits.Grace), ends: newEnds(), graces: newGraces(),
	}
	s.SetJobLimits(limits.Stage, limits.Total)
	s.SetShowSecrets(opts.ShowSecrets)
	if s.opts.Disk == nil {
		s.opts.Disk = store.FileSystem{}
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.jobs = job.NewTable(s.jobLimits, meet, s.unheard, s.reached, s.slow)
	s.retries = newRetries(limits.RetryMin, limits.RetryMax)
	s.exitRetries = newRetries(exitRetryMin, exitRetryMax)
	if err := s.openStores(); err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.tombstones.start(background, &s.background)
	if err := s.recover(ctx, background); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot recover the pods of an earlier run: %w", err), s.Close(ctx))
	}
	return s, nil
}

// SetJobLimits changes how long a stage and all of a job may take, of jobs that begin
// from now on.
func (s *Service) SetJobLimits(stage, total time.Duration) {
	s.jobTimes.Store(&job.Limits{Stage: stage, Total: total})
}

// SetShowSecrets changes whether verbose statuses show the values of environments.
func (s *Service) SetShowSecrets(show bool) { s.showSecrets.Store(show) }

// Close ends jobs and background work and leaves every pod as it is; what was
// under way is finished or torn down by the next New. ctx bounds the wait.
func (s *Service) Close(ctx context.Context) error {
	s.events.Close()
	s.retries.close()
	s.exitRetries.close()
	err := s.jobs.Close(ctx)
	s.stop()
	ended := make(chan struct{})
	go func() {
		s.background.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("cannot wait for background work: %w", context.Cause(ctx)))
	}
}

func (s *Service) openStores() error {
	quarantine := filepath.Join(s.opts.RootDir, "quarantine")
	var err error
	if s.sandboxes, err = openDir(s, store.Options[SandboxRecord]{
		Path: filepath.Join(s.opts.StateDir, "sandboxes"), Quarantine: quarantine, Name: (*SandboxRecord).name,
		Prior:   (*SandboxRecord).prior,
		Changed: s.sandboxChanged,
	}); err != nil {
		return err
	}
	if s.containers, err = openDir(s, store.Options[ContainerRecord]{
		Path: filepath.Join(s.opts.StateDir, "containers"), Quarantine: quarantine, Name: (*ContainerRecord).name,
		Prior:   (*ContainerRecord).prior,
		Changed: s.containerChanged,
	}); err != nil {
		return err
	}
	if s.attachments, err = openDir(s, store.Options[network.Attachment]{
		Path: filepath.Join(s.opts.RootDir, "attachments"), Quarantine: quarantine,
	}); err != nil {
		return err
	}
	s.events = events.NewHub(s.newestTime())
	s.tombstones, err = openTombstones(s, filepath.Join(s.opts.RootDir, "tombstones"), quarantine)
	return err
}

// openDir opens a directory of records and reports what it had to move aside.
func openDir[T any](s *Service, opts store.Options[T]) (*store.Dir[T], error) {
	opts.Disk = s.opts.Disk
	dir, bad, err := store.Open(opts)
	for _, q := range bad {
		s.log.Error("a record cannot be read and was moved aside", "file", q.Path, "err", q.Err)
	}
	return dir, err
}

// EngineInfo tells what the backend is and can do. Its warnings name the pods that have to
// be made again, and names that are taken twice, too.
func (s *Service) EngineInfo(ctx context.Context) (*engine.Info, error) {
	info, err := s.opts.Engine.Info(ctx)
	if err != nil {
		return nil, err
	}
	complete := *info
	complete.Warnings = slices.Concat(info.Warnings, s.unsafeInits(), s.sharedNames())
	return &complete, nil
}

// unsafeInits warns of pods whose containers can reach the host, through an init that an
// earlier berth made: the init lives as long as the pod.
func (s *Service) unsafeInits() []string {
	var warnings []string
	for _, rec := range s.sandboxes.All() {
		if rec.State != SandboxReady {
			continue
		}
		if why := s.view(rec).Unsafe; why != "" {
			warnings = append(warnings, fmt.Sprintf("pod %s (sandbox %s) %s; delete the pod and make it again", rec.name(), rec.ID, why))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// view is what the engine reads from the record of a sandbox that it made.
func (s *Service) view(rec *SandboxRecord) engine.SandboxView {
	if rec.Engine == nil {
		return engine.SandboxView{}
	}
	return s.opts.Engine.ViewSandbox(rec.Engine)
}

// NetworkReady is nil when sandboxes can be attached, else why not.
func (s *Service) NetworkReady(ctx context.Context) error { return s.opts.Network.Ready(ctx) }

// NetworkConfig is for verbose status; see network.Configured. It is nil for a network
// without a configuration of others.
func (s *Service) NetworkConfig() (config any, fault error) {
	if configured, ok := s.opts.Network.(network.Configured); ok {
		return configured.LoadedConfig()
	}
	return nil, nil
}

// NetworkInfo is for people and verbose status.
func (s *Service) NetworkInfo() map[string]string { return s.opts.Network.Info() }

// SetPodCIDR hands the node's pod ranges to the network.
func (s *Service) SetPodCIDR(ctx context.Context, cidr string) error {
	return s.opts.Network.SetPodCIDR(ctx, cidr)
}

// ImageInUse returns the ids of containers that use the image.
func (s *Service) ImageInUse(imageID string) []string {
	var ids []string
	for _, rec := range s.containers.All() {
		if rec.Image.ID == imageID {
			ids = append(ids, rec.ID)
		}
	}
	return ids
}

// sandbox finds a sandbox that callers may see.
func (s *Service) sandbox(id string) (*SandboxRecord, error) {
	full, err := s.sandboxID(id)
	if err != nil {
		return nil, err
	}
	rec, err := s.sandboxes.Get(full)
	if err == nil && !rec.visible() {
		return nil, fmt.Errorf("sandbox %q: %w: it is being made, see the jobs", id, errs.NotFound)
	}
	return rec, err
}

// sandboxID completes the id of a sandbox that callers may see.
func (s *Service) sandboxID(id string) (string, error) {
	full, err := s.sandboxes.Resolve(id, (*SandboxRecord).visible)
	if errors.Is(err, errs.Invalid) {
		err = fmt.Errorf("pod_sandbox_id: %w", err)
	}
	return full, err
}

// container finds a container that callers may see.
func (s *Service) container(id string) (*ContainerRecord, error) {
	full, err := s.containerID(id)
	if err != nil {
		return nil, err
	}
	rec, err := s.containers.Get(full)
	if err == nil && !rec.visible() {
		return nil, fmt.Errorf("container %q: %w: it is being made, see the jobs", id, errs.NotFound)
	}
	return rec, err
}

// containerID is sandboxID for containers.
func (s *Service) containerID(id string) (string, error) {
	full, err := s.containers.Resolve(id, (*ContainerRecord).visible)
	if errors.Is(err, errs.Invalid) {
		err = fmt.Errorf("container_id: %w", err)
	}
	return full, err
}

// newID returns 64 lower-case hex digits.
func newID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails: the program ends instead
	return hex.EncodeToString(b[:])
}

// now is the time as records have it, and never 0, which means "not yet".
func now() int64 { return max(time.Now().UnixNano(), 1) }
