package containers

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

// reapChild reaps the child of a pidfd. attrs describe it in the log.
//
// When a process was traced at its end, its parent can reap it only after the tracer has waited for
// it, or has ended. Until then the zombie keeps the init of its PID namespace from ending. So
// reapChild retries in the background.
func (s *Set) reapChild(pidfd *os.File, attrs ...any) {
	if done := s.tryReap(pidfd, attrs); done {
		return
	}
	own, err := sysfd.Duplicate(pidfd)
	if err != nil {
		s.log.Warn("cannot reap a traced child", append(attrs, "error", err)...)
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
			if s.tryReap(own, attrs) {
				return
			}
		}
	})
}

// tryReap tries once, and reports whether there is nothing more to do.
func (s *Set) tryReap(pidfd *os.File, attrs []any) (done bool) {
	_, ok, err := sysproc.ReapChild(pidfd)
	if errs.IgnoreNotFound(err) != nil {
		s.log.Warn("cannot reap an ended child", append(attrs, "error", err)...)
	}
	return ok || err != nil
}
