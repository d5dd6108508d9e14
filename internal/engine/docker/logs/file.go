package logs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"

	"github.com/berthrun/berth/internal/errs"
)

// file is the log file of a container, and the record of what is in it. One goroutine at a
// time uses it.
type file struct {
	place      place
	recordPath string
	write      writeFunc
	log        *slog.Logger

	now    *logFile // nil while there is none
	offset int64
	// torn is the beginning of a line at offset, which a killed process left. The engine
	// delivers the line again, so it is completed and no reader sees a byte change.
	torn []byte
	// written is what is in the log.
	written progress
	// unrecorded is true after the record could not be stored.
	unrecorded bool
}

// recover finds the file of a predecessor and returns what is written. It can be repeated
// after an error.
func (f *file) recover() (progress, error) {
	f.close()
	f.offset, f.torn = 0, nil
	var err error
	f.written, err = f.find()
	return f.written, err
}

// find is recover.
//
// A kubelet may have renamed the file, and may rename it back if it got no answer to its
// request to reopen the log. So a renamed file stays the log until there is a new one.
func (f *file) find() (progress, error) {
	known, err := readRecord(f.recordPath)
	switch {
	case errors.Is(err, errs.NotFound):
		return f.recoverFromTail()
	case errors.Is(err, errs.State):
		f.log.Warn("cannot use the record of a log; reading the log instead", "error", err)
		return f.recoverFromTail()
	case err != nil:
		return progress{}, err
	}
	written := known.Written
	next, err := f.openExisting()
	if err != nil {
		return written, err
	}
	if next != nil {
		st, err := next.state()
		if err != nil {
			next.Close()
			return written, err
		}
		if st.ID == known.Log {
			f.now = next
			return written, f.rescan(known.Offset, &written)
		}
	}
	old, err := f.place.find(known.Log)
	switch {
	case err == nil:
		f.now = old
		err = f.rescan(known.Offset, &written)
	case errors.Is(err, errs.NotFound) || gone(err):
		f.log.Warn("the log file was deleted while no process wrote to it")
		err = nil
	}
	if err == nil && next != nil {
		if err = f.cutTorn(); err == nil {
			f.written = written
			return written, f.use(next)
		}
	}
	if next != nil {
		next.Close()
	}
	return written, err
}

// openExisting opens the file at the path, nil if there is none.
func (f *file) openExisting() (*logFile, error) {
	next, err := f.place.open(false)
	if err != nil && gone(err) {
		return nil, nil //nolint:nilnil // a file that is absent is no error here
	}
	return next, err
}

func (f *file) rescan(offset int64, written *progress) error {
	before := *written
	var err error
	if f.torn, f.offset, err = rescan(f.now, offset, written); err != nil {
		return err
	}
	if before.Waiting == 0 && f.offset > offset {
		// Whether output waited when these lines were written is not recorded.
		written.Waiting = max(before.Last, 1)
	}
	return nil
}

// recoverFromTail finds out from the log itself what is written.
func (f *file) recoverFromTail() (progress, error) {
	legacy, err := f.place.removeLink()
	if err != nil && !gone(err) {
		return progress{}, err
	}
	if legacy {
		f.log.Info("the log was a link to the engine's file; it becomes a log with all lines of the container")
		return progress{}, nil
	}
	now, err := f.openExisting()
	if err != nil {
		return progress{}, err
	}
	older, compressed, err := f.place.rotated()
	if err != nil && !gone(err) {
		return progress{}, err
	}
	defer func() {
		for _, old := range older {
			old.Close()
		}
	}()
	files := older
	if now != nil {
		files = append([]*logFile{now}, older...)
	}
	written, torn, err := scanTail(files, !compressed)
	written.Waiting = written.Last // for all that is known
	if err != nil || len(files) == 0 {
		return written, err
	}
	st, err := files[0].state()
	if err != nil {
		return written, err
	}
	if now == nil { // the log was just renamed
		if len(torn) > 0 {
			err = files[0].cut(st.Size - int64(len(torn)))
		}
		return written, err
	}
	f.now, f.torn, f.offset = now, torn, st.Size-int64(len(torn))
	return written, nil
}

// append writes whole lines, after which the log contains written. It can be repeated after
// an error. An error for which gone is true means that there is no log to write to.
func (f *file) append(lines []byte, written progress) error {
	if len(lines) == 0 {
		return nil
	}
	if err := f.ready(); err != nil {
		return err
	}
	if !bytes.HasPrefix(lines, f.torn) {
		if err := f.cutTorn(); err != nil {
			return err
		}
	}
	if err := f.write(f.now, lines, f.offset); err != nil {
		return err
	}
	f.torn = nil
	f.offset += int64(len(lines))
	f.written = written
	f.store()
	return nil
}

// ready opens the file to write to if needed.
func (f *file) ready() error {
	if f.now != nil {
		st, err := f.now.state()
		if err != nil {
			return err
		}
		if st.Links > 0 {
			if st.Size < f.offset {
				f.log.Warn("another program truncated the log file; continuing at its new end",
					"size", st.Size, "expected", f.offset)
				f.offset, f.torn = st.Size, nil
			}
			return nil
		}
		f.log.Warn("the log file was deleted; making it again")
		f.now.Close()
		f.now, f.torn = nil, nil
	}
	now, err := f.place.open(true)
	if err != nil {
		return err
	}
	return f.use(now)
}

// use continues at the end of a file. The record names it before the first write to it.
func (f *file) use(now *logFile) error {
	st, err := now.state()
	if err != nil {
		now.Close()
		return err
	}
	f.close()
	f.now, f.offset, f.torn = now, st.Size, nil
	f.store()
	return nil
}

// reopen switches to the file that is at the log's path.
func (f *file) reopen() error {
	next, err := f.place.open(true)
	if err != nil {
		return fmt.Errorf("cannot reopen the log: %w", err)
	}
	st, err := next.state()
	if err != nil {
		next.Close()
		return err
	}
	if f.now != nil {
		now, err := f.now.state()
		if err != nil || now.ID == st.ID {
			next.Close()
			return err
		}
		if err := f.cutTorn(); err != nil {
			next.Close()
			return err
		}
	}
	return f.use(next)
}

// cutTorn cuts off an unfinished line which the engine does not deliver again.
func (f *file) cutTorn() error {
	if len(f.torn) == 0 || f.now == nil {
		return nil
	}
	if err := f.now.cut(f.offset); err != nil {
		return err
	}
	f.torn = nil
	return nil
}

// store stores the record. Without one the next process reads the log from the place that the
// former record names.
func (f *file) store() {
	st, err := f.now.state()
	if err == nil {
		r := record{Version: recordVersion, Log: st.ID, Offset: f.offset, Written: f.written}
		err = r.write(f.recordPath)
	}
	if err != nil && !f.unrecorded {
		f.log.Warn("cannot store how much of a log is written", "error", err)
	}
	f.unrecorded = err != nil
}

func (f *file) close() {
	if f.now != nil {
		f.now.Close()
		f.now = nil
	}
}
