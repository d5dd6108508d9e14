// Package oomscore decides which oom_score_adj the containers of a Docker Engine get. Where the engine
// cannot lower scores, its OCI runtime starts no container that requests a lower one, so berth requests
// the lowest that the engine can give.
//
// The package reads what the engine's processes may do, and learns from starts that failed. It knows
// nothing of requests.
package oomscore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// The kinds of containers. Of each the log has one warning.
const (
	Pause      = "pause containers"
	Containers = "containers"
)

// Read finds out which scores an engine can set.
type Read func(ctx context.Context) (sysproc.OOMScoreLimit, error)

// Scores has what is known of one engine. All methods are safe for concurrent use.
type Scores struct {
	read Read
	log  *slog.Logger

	mu sync.Mutex
	// known is true once the engine was looked at. limit is what was found then, or at a start.
	known bool
	limit sysproc.OOMScoreLimit
	// confirmed is true once a start has shown that the engine can lower scores.
	confirmed bool
	// warned has the kinds of containers that were warned of.
	warned map[string]bool
}

// New returns Scores that have not looked at the engine yet.
func New(read Read, log *slog.Logger) *Scores {
	return &Scores{read: read, log: log, warned: map[string]bool{}}
}

// Look looks at the engine, which may be another process than before, with other abilities.
func (s *Scores) Look(ctx context.Context) {
	limit, err := s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.confirmed = true, false
	if err != nil {
		// A start shows it.
		s.log.Debug("it is not known which oom_score_adj the Docker engine can set", "error", err)
		limit = sysproc.OOMScoreLimit{Lowers: true}
	}
	s.limit = limit
}

// current looks at the engine if nobody has, and returns what it can do.
func (s *Scores) current(ctx context.Context) sysproc.OOMScoreLimit {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if !known {
		s.Look(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// Fit returns the score that a new container of a kind gets if the engine cannot set the requested one;
// else nil.
func (s *Scores) Fit(ctx context.Context, kind string, requested int) (raised *int) {
	limit := s.current(ctx)
	if limit.Lowers || requested >= limit.Own {
		return nil
	}
	s.warn(kind, requested, limit)
	return &limit.Own
}

// Confirm notes that a container with a lowered score has started.
func (s *Scores) Confirm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed = true
}

// Confirmed reports whether a start has shown that the engine can lower scores. A start that fails after
// that has another cause.
func (s *Scores) Confirmed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

// Sure returns a score that the engine can set although its processes show more abilities than its OCI
// runtime has: a containerd with a unit of its own may have fewer capabilities, for example.
func (s *Scores) Sure(ctx context.Context) int { return max(s.current(ctx).Own, 0) }

// Learn notes that a start with a score has succeeded after one with a lower score had failed.
func (s *Scores) Learn(kind string, failed, succeeded int) {
	s.mu.Lock()
	s.known = true
	s.limit = sysproc.OOMScoreLimit{Own: succeeded, Why: fmt.Sprintf(
		"its OCI runtime did not start a container with %d, and started one with %d: it may lack CAP_SYS_RESOURCE", failed, succeeded)}
	limit := s.limit
	s.mu.Unlock()
	s.warn(kind, failed, limit)
}

// Warning is a sentence for people about what the engine cannot do, "" for nothing.
func (s *Scores) Warning(ctx context.Context) string {
	limit := s.current(ctx)
	if limit.Lowers {
		return ""
	}
	return fmt.Sprintf("oom_score_adj of containers cannot be lowered below %d by this Docker engine (%s); berth raises lower ones", limit.Own, limit.Why)
}

func (s *Scores) warn(kind string, requested int, limit sysproc.OOMScoreLimit) {
	s.mu.Lock()
	again := s.warned[kind]
	s.warned[kind] = true
	s.mu.Unlock()
	if !again {
		s.log.Warn("the Docker engine cannot lower oom_score_adj as far as requested, and berth raises it",
			"of", kind, "requested", requested, "applied", limit.Own, "reason", limit.Why)
	}
}
