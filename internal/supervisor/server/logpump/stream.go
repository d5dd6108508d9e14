package logpump

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// spliceMax is how much the pump takes from a pipe at once. With the unfinished
	// line before it, it bounds the unconsumed bytes of a stage.
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
	pipe  *os.File // nil: there is only what the stage has
	stage *os.File // nil until the container writes for the first time

	size     int64 // of the stage
	consumed int64 // as in the record
	teed     int64 // what subscribers were given
	holes    int64 // the stage has no space before this
	total    int64 // taken from the pipe by this process

	// busy is true when the pipe may have data, so it is not armed.
	busy bool
	// ended is true when no process can write to the pipe.
	ended bool
	// drainTo is the total at which a drain need not wait for the pipe.
	drainTo int64
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

// fill takes up to room bytes from the pipe. empty is true when the pipe has no more
// now.
func (s *stream) fill(room int) (empty bool, err error) {
	if s.pipe == nil || s.ended {
		return true, nil
	}
	if s.stage == nil {
		stage, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return false, fmt.Errorf("cannot make a log stage: %w", err)
		}
		s.stage = stage
	}
	n, err := sysfd.SplicePipe(s.stage, s.size, s.pipe, min(room, spliceMax))
	if errors.Is(err, syscall.EAGAIN) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if n == 0 {
		s.ended = true
		return true, nil
	}
	s.size += int64(n)
	s.total += int64(n)
	return false, nil
}

// read returns the unconsumed bytes of the stage, as many as fit into buf.
func (s *stream) read(buf []byte) ([]byte, error) {
	n := min(int64(len(buf)), s.size-s.consumed)
	if n == 0 {
		return nil, nil
	}
	if _, err := s.stage.ReadAt(buf[:n], s.consumed); err != nil {
		return nil, fmt.Errorf("cannot read a log stage: %w", err)
	}
	return buf[:n], nil
}

// trim frees the space of consumed bytes. emptied is true when offsets start at 0 again.
// The caller must record that before it takes anything else from the pipe.
func (s *stream) trim(idle bool) (emptied bool, err error) {
	switch {
	case s.size == 0:
	case s.consumed == s.size && (idle || s.size >= trimEvery):
		if err := s.stage.Truncate(0); err != nil {
			return false, fmt.Errorf("cannot empty a log stage: %w", err)
		}
		s.size, s.consumed, s.teed, s.holes = 0, 0, 0, 0
		return true, nil
	case s.consumed-s.holes >= trimEvery:
		end := s.consumed &^ (pageSize - 1)
		if err := sysfd.PunchHole(s.stage, s.holes, end-s.holes); err != nil {
			return false, err
		}
		s.holes = end
	}
	return false, nil
}

func (s *stream) close() {
	if s.pipe != nil {
		s.pipe.Close()
	}
	if s.stage != nil {
		s.stage.Close()
	}
}
