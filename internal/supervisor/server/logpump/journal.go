package logpump

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

// reopenEvery is how often a log that was deleted is looked for again.
const reopenEvery = time.Second

// journal writes the log of one container, each byte of output once. It owns the
// record, the log file and the offset in it. Only the pump's worker calls it, but
// for opened and blocked. The worker is behind the gate of the log directory.
//
// The order of one write, and what a successor does if it stops there:
//
//	publish the intent   nothing of it is in the log yet, or a part: write it again,
//	pwrite at the offset the same bytes to the same place
//	publish consumed     go on behind it
type journal struct {
	place  place   // nil: no log, output is discarded
	record *record // nil without a place
	log    *slog.Logger

	pos  position
	file logFile // nil while the log is gone
	// renamed is true when the file was found under another name than the log's.
	renamed bool
	// lost is the reason why there is no file, lookAgain the time of the next attempt.
	lost      error
	lookAgain time.Time

	// since is when the journal's current call began, 0 outside of a call.
	since     atomic.Int64
	discarded atomic.Int64
	written   atomic.Int64
	reopened  atomic.Int64
}

// pending returns the stream and the end of a write that was begun and not
// finished.
func (j *journal) pending() (stream crilog.Stream, end int64, ok bool) {
	return crilog.Stream(j.pos.intent - 1), j.pos.end, j.pos.intent != 0
}

// append writes lines, which are the output of stream up to end and have the time at.
// If it fails and pending returns true, the caller must call it again with the same
// arguments. When the log is gone, append discards and counts the output.
func (j *journal) append(stream crilog.Stream, end int64, at time.Time, lines []byte) error {
	if j.place == nil {
		j.consume(stream, end)
		return nil
	}
	now := j.enter()
	defer j.leave()
	if err := j.ready(now); err != nil {
		return err
	}
	if j.file == nil {
		j.discarded.Add(end - j.pos.consumed[stream])
		j.consume(stream, end)
		return nil
	}
	j.pos.intent, j.pos.end, j.pos.at = int64(stream)+1, end, at.UnixNano()
	j.publish()
	if _, err := j.file.WriteAt(lines, j.pos.offset); err != nil {
		return fmt.Errorf("cannot write to the log: %w", err)
	}
	j.pos.offset += int64(len(lines))
	j.written.Add(int64(len(lines)))
	j.consume(stream, end)
	return nil
}

// enter begins a call that may block, and returns the time.
func (j *journal) enter() time.Time {
	now := time.Now()
	j.since.Store(now.UnixNano())
	return now
}

func (j *journal) leave() { j.since.Store(0) }

// ready opens the file to write to if needed. The file is nil if there is none.
func (j *journal) ready(now time.Time) error {
	if j.file != nil {
		st, err := j.file.state()
		if err != nil {
			return err
		}
		if st.Links > 0 {
			if st.Size < j.pos.offset {
				j.log.Warn("another program truncated the log file; continuing at its new end",
					"size", st.Size, "expected", j.pos.offset)
				j.pos.offset = st.Size
			}
			return nil
		}
		j.markLost(errors.New("log file was deleted"))
	}
	if now.Before(j.lookAgain) {
		return nil
	}
	file, err := j.place.open(true)
	if err != nil && gone(err) {
		j.lookAgain = now.Add(reopenEvery)
		j.markLost(err)
		return nil
	}
	if err != nil {
		return err
	}
	return j.switchTo(file)
}

// markLost records that there is no log.
func (j *journal) markLost(why error) {
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
	if j.lost == nil {
		j.log.Warn("the log file is gone; discarding output until the file can be created again",
			"reason", why)
	}
	j.lost = why
}

// switchTo makes file the log, and continues at its end.
func (j *journal) switchTo(file logFile) error {
	st, err := file.state()
	if err != nil {
		file.Close()
		return err
	}
	if j.file != nil {
		j.file.Close()
	}
	if j.lost != nil {
		j.log.Warn("the log file exists again", "bytes discarded so far", j.discarded.Load())
	}
	j.file, j.lost = file, nil
	j.pos.log, j.pos.offset = st.ID, st.Size
	j.publish()
	return nil
}

// reopen switches to the file that is at the log's path now.
func (j *journal) reopen() error {
	if j.place == nil {
		return fmt.Errorf("container has no log: %w", errs.State)
	}
	j.enter()
	defer j.leave()
	file, err := j.place.open(true)
	if err != nil {
		return fmt.Errorf("cannot reopen the log: %w", err)
	}
	st, err := file.state()
	if err != nil || (j.file != nil && st.ID == j.pos.log) {
		file.Close()
		return err
	}
	j.reopened.Add(1)
	return j.switchTo(file)
}

// recover finds the file that the record names.
//
// Its name may have changed. Then a write that was begun is completed in it, and the
// file stays the log until there is a new one at the path (see finishRotation), or until
// reopen. A kubelet that renamed it and got no answer may rename it back.
func (j *journal) recover() error {
	j.enter()
	defer j.leave()
	file, err := j.place.open(false)
	if err == nil {
		st, err := file.state()
		if err == nil && st.ID == j.pos.log {
			j.file = file
			return nil
		}
		file.Close()
		if err != nil {
			return err
		}
	} else if !gone(err) {
		return err
	}
	file, err = j.place.find(j.pos.log)
	if errors.Is(err, errs.NotFound) {
		// A rename at this moment can hide a name from a listing of the directory.
		file, err = j.place.find(j.pos.log)
	}
	switch {
	case err == nil:
		j.file, j.renamed = file, true
	case errors.Is(err, errs.NotFound) || gone(err):
		// append makes a new one.
		j.markLost(errors.New("log file was deleted while no supervisor wrote to it"))
	default:
		return err
	}
	return nil
}

// finishRotation switches to the file at the log's path if recover found the old one
// under another name and there is a new one already: a rotation was under way.
func (j *journal) finishRotation() error {
	if !j.renamed {
		return nil
	}
	j.enter()
	defer j.leave()
	j.renamed = false
	file, err := j.place.open(false)
	if err != nil {
		if gone(err) {
			return nil
		}
		return err
	}
	st, err := file.state()
	if err != nil || (j.file != nil && st.ID == j.pos.log) {
		file.Close()
		return err
	}
	return j.switchTo(file)
}

// consume records that output up to end needs no more work.
func (j *journal) consume(stream crilog.Stream, end int64) {
	j.pos.consumed[stream] = end
	j.pos.intent, j.pos.end = 0, 0
	j.publish()
}

// useRing records that the unconsumed output of a stream begins at consumed, and is in the ring now,
// or in the stage if ring is the zero value. No write is unfinished.
func (j *journal) useRing(stream crilog.Stream, consumed int64, ring ringPosition) {
	if ring.room != 0 {
		j.record.setVersion(ringVersion)
	}
	j.pos.consumed[stream], j.pos.rings[stream] = consumed, ring
	j.publish()
	if j.pos.rings == ([crilog.Streams]ringPosition{}) {
		j.record.setVersion(recordVersion)
	}
}

// fillRing records how much is in a stream's ring, and how much is there after a read that follows; 0
// if none does.
func (j *journal) fillRing(stream crilog.Stream, size, filling int64) {
	j.pos.rings[stream].size, j.pos.rings[stream].filling = size, filling
	j.publish()
}

func (j *journal) publish() {
	if j.record != nil {
		j.record.publish(j.pos)
	}
}

// blocked returns since when the journal waits for the file system, and if it
// does.
func (j *journal) blocked() (since time.Time, waits bool) {
	if at := j.since.Load(); at != 0 {
		return time.Unix(0, at), true
	}
	return time.Time{}, false
}

func (j *journal) close() {
	if n := j.discarded.Load(); n > 0 && j.lost != nil {
		j.log.Warn("discarded output because the log is gone", "bytes", n, "reason", j.lost)
	}
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
	if j.record != nil {
		j.record.close()
		j.record = nil
	}
}
