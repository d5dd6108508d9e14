package logpump

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// spliceMax is how much the pump takes from a pipe at once, as long as the current turn
	// has written nothing to the log. When the log cannot be written, twice that and an
	// unfinished line bound the unconsumed bytes of a stage.
	spliceMax = 64 << 10
	// trimEvery is how much consumed output a stage keeps before its space is freed,
	// while the container writes.
	trimEvery = 256 << 10
	pageSize  = 4 << 10
)

// stream is one output of a container: the pipe that the container writes to and the
// stage, a file on tmpfs with all that was taken from the pipe. The size of the stage is
// the only record of it.
//
// All but token belongs to the pump's worker.
type stream struct {
	id    crilog.Stream
	token uint64
	path  string
	files *files
	pipe  *os.File // nil: there is only what the stage has
	stage *os.File // nil until the container writes for the first time
	// ring takes the place of the stage while the container floods, else it is nil. hasSlot is
	// false for a ring of a predecessor.
	ring    *ring
	hasSlot bool
	// idleTurns is how many turns have begun since the ring got something.
	idleTurns int
	// bigPieces is how many large pieces were read into the stage, each within bigWithin after the
	// one before it, lastBig when the last one was.
	bigPieces int
	lastBig   time.Time

	size     int64 // of the stage
	consumed int64 // as in the record
	teed     int64 // what subscribers were given
	holes    int64 // the stage has no space before this
	total    int64 // taken from the pipe by this process

	// busy is true when the pipe may have data, so it is not armed.
	busy bool
	// empty is true when this turn has found the pipe empty.
	empty bool
	// ended is true when no process can write to the pipe.
	ended bool
	// drainTo is the total at which a drain need not wait for the pipe.
	drainTo int64
}

// files makes the stages and rings of a pump until the pump is abandoned. The worker may still run then: without
// this check it could make a file in a directory that the caller is removing.
type files struct {
	mu        sync.Mutex
	abandoned bool
}

// make opens a file for reading and writing, and makes it if it does not exist. Kind State when the pump is
// abandoned. It does not hang: the files are on tmpfs.
func (f *files) make(path string, flags int) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.abandoned {
		return nil, fmt.Errorf("log pump was abandoned: %w", errs.State)
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|flags, 0o600)
}

// end makes every later make fail.
func (f *files) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.abandoned = true
}

// ended reports whether the pump is abandoned.
func (f *files) ended() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.abandoned
}

func stagePath(dir string, id crilog.Stream) string {
	return filepath.Join(dir, id.String()+".stage")
}

// load opens the stage of a predecessor. consumed is the value in the record; load
// returns the correct one: a stage smaller than that was emptied.
func (s *stream) load(consumed int64) (int64, error) {
	stage, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot open a log stage: %w", err)
	}
	st, err := sysfile.StatFile(stage)
	if err != nil {
		stage.Close()
		return 0, err
	}
	s.stage, s.size = stage, st.Size
	if s.size < consumed {
		consumed = 0
	}
	s.consumed, s.teed = consumed, s.size
	return consumed, nil
}

// fill takes up to room bytes from the pipe, and returns how many. It sets empty when the pipe has
// no more now.
func (s *stream) fill(room int) (int, error) {
	if s.pipe == nil || s.ended {
		s.empty = true
		return 0, nil
	}
	if err := s.openStage(); err != nil {
		return 0, err
	}
	n, err := sysfd.SplicePipe(s.stage, s.size, s.pipe, room)
	if errors.Is(err, syscall.EAGAIN) {
		s.empty = true
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		s.ended, s.empty = true, true
		return 0, nil
	}
	s.size += int64(n)
	s.total += int64(n)
	if n >= spliceMax/2 {
		s.big(time.Now())
	}
	return n, nil
}

// openStage makes the stage if there is none.
func (s *stream) openStage() error {
	if s.stage != nil {
		return nil
	}
	stage, err := s.files.make(s.path, 0)
	if err != nil {
		return fmt.Errorf("cannot make a log stage: %w", err)
	}
	s.stage = stage
	return nil
}

// big notes that a large piece came from the pipe into the stage.
func (s *stream) big(now time.Time) {
	if now.Sub(s.lastBig) > bigWithin {
		s.bigPieces = 0
	}
	s.bigPieces++
	s.lastBig = now
}

// floods reports whether the container writes so much that a ring is worth its cost.
func (s *stream) floods() bool { return s.bigPieces >= ringAfter }

// unread returns how many bytes of the stage are unconsumed.
func (s *stream) unread() int { return int(s.size - s.consumed) }

// read returns the unconsumed bytes of the stage, as many as fit into buf, or those of the ring.
func (s *stream) read(buf []byte) ([]byte, error) {
	if s.ring != nil {
		return s.ring.bytes(s.consumed, min(s.consumed+int64(len(buf)), s.size)), nil
	}
	n := min(len(buf), s.unread())
	if n == 0 {
		return nil, nil
	}
	if _, err := s.stage.ReadAt(buf[:n], s.consumed); err != nil {
		return nil, fmt.Errorf("cannot read a log stage: %w", err)
	}
	return buf[:n], nil
}

// trim frees the space of consumed bytes at the end of a turn. emptied is true when offsets start at 0 again.
// The caller must record that before it takes anything else from the pipe.
func (s *stream) trim() (emptied bool, err error) {
	switch {
	case s.size == 0 || s.ring != nil:
	case s.consumed == s.size && (s.empty || s.size >= trimEvery):
		if err := s.stage.Truncate(0); err != nil {
			return false, fmt.Errorf("cannot empty a log stage: %w", err)
		}
		s.size, s.consumed, s.teed, s.holes = 0, 0, 0, 0
		return true, nil
	default:
		return false, s.punch(spliceMax)
	}
	return false, nil
}

// punch frees the space of consumed bytes if there are so many.
func (s *stream) punch(least int64) error {
	if s.ring != nil || s.consumed-s.holes < least {
		return nil
	}
	end := s.consumed &^ (pageSize - 1)
	if err := sysfd.PunchHole(s.stage, s.holes, end-s.holes); err != nil {
		return err
	}
	s.holes = end
	return nil
}

func (s *stream) close() {
	if s.pipe != nil {
		s.pipe.Close()
	}
	if s.stage != nil {
		s.stage.Close()
	}
}
