package server

import (
	"os"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Pauses between two tries to reap a child that a tracer holds.
const (
	reapFirst = 10 * time.Millisecond
	reapLast  = time.Second
)

// reapChild frees the zombie of the child behind pidfd. who describes it, for the log.
//
// A process that was traced when it ended belongs to its tracer first: the kernel shows it
// to its parent when the tracer has waited for it, or has ended. Until then the zombie keeps
// the init of its PID namespace from ending. So it is tried again, in the background.
func (s *Server) reapChild(pidfd *os.File, who ...any) {
	if done := s.tryReap(pidfd, who); done {
		return
	}
	own, err := sysfd.Duplicate(pidfd)
	if err != nil {
		s.log.Warn("a traced child is not reaped", append(who, "error", err)...)
		return
	}
	go errs.Protect("reaping of a traced child", func() {
		defer own.Close()
		for pause := reapFirst; ; pause = min(2*pause, reapLast) {
			select {
			case <-s.stopping.Done():
				return // the keeper reaps it
			case <-time.After(pause):
			}
			if s.tryReap(own, who) {
				return
			}
		}
	})
}

// tryReap reports whether there is nothing more to do.
func (s *Server) tryReap(pidfd *os.File, who []any) (done bool) {
	_, ok, err := sysproc.ReapChild(pidfd)
	if errs.IgnoreNotFound(err) != nil {
		s.log.Warn("an ended child is not reaped", append(who, "error", err)...)
	}
	return ok || err != nil
}
