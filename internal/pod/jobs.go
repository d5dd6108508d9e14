package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/job"
)

// The kinds of job.
const (
	kindRun        job.Kind = "run sandbox"
	kindCreate     job.Kind = "create container"
	kindStart      job.Kind = "start container"
	kindUpdate     job.Kind = "update"
	kindCheckpoint job.Kind = "checkpoint container"
	// kindCheckpointPod and kindRestore have jobs of the pod's containers as parts.
	kindCheckpointPod job.Kind = "checkpoint sandbox"
	kindRestore       job.Kind = "restore sandbox"
	kindStop          job.Kind = "stop"
	kindRemove        job.Kind = "remove"
)

// JobKinds returns all kinds of jobs.
func (s *Service) JobKinds() []job.Kind {
	return []job.Kind{kindRun, kindCreate, kindStart, kindUpdate, kindCheckpoint, kindCheckpointPod, kindRestore, kindStop, kindRemove}
}

// Jobs returns every job that runs, the oldest first.
func (s *Service) Jobs() []job.Info { return s.jobs.List() }

// WatchJobs follows all jobs, beginning with those that run. The caller calls Cancel.
func (s *Service) WatchJobs() (*job.Watch, error) { return s.jobs.Watch() }

// CloseJobWatches ends all that WatchJobs has returned.
func (s *Service) CloseJobWatches() { s.jobs.CloseWatches() }

// CancelJob cancels a job for an operator; see job.Table.Cancel. A job that makes something undoes it, as when a stop
// replaces it. A stop or a removal is refused with kind State.
func (s *Service) CancelJob(ctx context.Context, id string) (before job.Info, end job.Update, err error) {
	return s.jobs.Cancel(ctx, id, fmt.Errorf("an operator has cancelled the job: %w", errs.Unavailable), func(info job.Info) error {
		if info.Kind != kindStop && info.Kind != kindRemove {
			return nil
		}
		return fmt.Errorf("cannot cancel %q of %s, which is at stage %q and waits for %s: a stop or a removal goes to its end, so that nothing is left half removed: %w",
			info.Kind, info.Key, info.Stage, info.WaitsFor, errs.State)
	})
}

// RecordIDs are the ids of sandboxes, containers and attachments that have a record, and those of
// running jobs, sorted.
func (s *Service) RecordIDs() ([]string, error) {
	attached, err := s.Sandboxes.network.IDs()
	if err != nil {
		return nil, err
	}
	records := s.Sandboxes.records
	ids := slices.Concat(records.Sandboxes.IDs(), records.Containers.IDs(), attached)
	for _, j := range s.Jobs() {
		ids = append(ids, j.ID)
	}
	slices.Sort(ids)
	return slices.Compact(slices.DeleteFunc(ids, func(id string) bool { return id == "" })), nil
}

// resolveConflict is the rule for a request that finds a running job of its key:
//
//	          running:  make (same)  make (other)  start    update   stop     remove
//	make                join         replace       after    after    after    after
//	start               after        after         join     after    after    after
//	update              after        after         after    after    after    after
//	stop                replace      replace       replace  replace  join     join
//	remove              replace      replace       replace  replace  after    join
//
// A make is that of a sandbox or of a container, or the restore of a sandbox; a job joins one of its own kind alone. A
// checkpoint is treated as an update.
//
// A request that replaces a job also replaces those that this job waits for, each by the same rule.
// No other request cancels a stop or a removal: they run to their end. Two records share a
// name only where a state directory was restored or copied; then a request for one waits for
// the job of the other.
func resolveConflict(running *job.Job, next *job.Request) job.Conflict {
	creating := running.Kind == kindRun || running.Kind == kindCreate || running.Kind == kindRestore
	changing := running.Kind == kindStart || running.Kind == kindUpdate || running.Kind == kindCheckpoint || running.Kind == kindCheckpointPod
	switch next.Kind {
	case kindRun, kindCreate, kindRestore:
		if !creating {
			return job.After
		}
		if running.Kind == next.Kind && job.Difference(running.Want, next.Want) == "" {
			return job.Join
		}
		return job.Replace
	case kindUpdate, kindCheckpoint, kindCheckpointPod:
		return job.After
	case kindStart:
		if running.ID == next.ID && running.Kind == kindStart {
			return job.Join
		}
		return job.After
	default:
		switch {
		case !creating && running.ID != next.ID:
			return job.After
		case creating || changing:
			return job.Replace
		case running.Kind == kindStop && next.Kind == kindRemove:
			return job.After
		}
		return job.Join
	}
}

// SetJobLimits changes how long a stage and all of a job may take, of jobs that begin
// from now on.
func (s *Service) SetJobLimits(stage, total time.Duration) {
	s.jobTimes.Store(&job.Limits{Stage: stage, Total: total})
}

// jobLimits bounds all jobs but stop, remove, checkpoints and the restore of a pod. These have no total limit: a stop waits
// out a grace period of any length, each of their steps has its own limit, and a checkpoint and a restore have that of their
// request.
func (s *Service) jobLimits(kind job.Kind) job.Limits {
	switch kind {
	case kindStop, kindRemove, kindCheckpoint, kindCheckpointPod, kindRestore:
		return job.Limits{}
	default:
		return *s.jobTimes.Load()
	}
}

// logFailure logs the failure of a job without waiters. A job that another one or the end of the
// daemon has cancelled is not a failure.
func (s *Service) logFailure(info job.Info, err error) {
	level := slog.LevelError
	if info.Cancelled && !errors.Is(err, errs.Deadline) {
		level = slog.LevelInfo
	}
	s.log.Log(context.Background(), level, "cannot complete a job in the background", "job", info.Kind, "key", info.Key, "id", info.ID, "age", info.Age, "error", err)
}

// logStage logs where a job is: after a crash the log shows where it was.
func (s *Service) logStage(info job.Info) {
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("job stage", "job", info.Kind, "key", info.Key, "id", info.ID, "stage", info.Stage)
	}
}

// logSlowStage warns of a job that makes no progress: a plugin that hangs, a mount that does
// not answer.
func (s *Service) logSlowStage(info job.Info) {
	s.log.Warn("a job stays in one stage", "job", info.Kind, "key", info.Key, "id", info.ID, "stage", info.Stage,
		"waits_for", info.WaitsFor, "seconds", int(info.StageAge.Seconds()))
}
