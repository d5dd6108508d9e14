package nodepage

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/printable"
)

// One answer has a bounded part of a log; the next one continues it.
const (
	logTailLines = 200
	logBytes     = 256 << 10
	logsAtOnce   = 8
	lineBytes    = 8192
)

// Log is the answer of /api/log.
type Log struct {
	Lines []LogLine `json:"lines"`
	// Cursor is where the next answer continues. More reports whether there is more now.
	Cursor string `json:"cursor"`
	More   bool   `json:"more"`
	// Again is true if the log begins again: it was rotated, or emptied.
	Again bool `json:"again,omitempty"`
}

// LogLine is one line. Text is printable.
type LogLine struct {
	Time time.Time `json:"time"`
	// Error is true for the standard error.
	Error bool   `json:"error,omitempty"`
	Text  string `json:"text"`
}

// answerLog reads the log of ?container=ID from the end, or behind ?from=CURSOR.
func (p *Page) answerLog(r *http.Request) (any, error) {
	id := r.URL.Query().Get("container")
	if id == "" {
		return nil, fmt.Errorf("container: want an id: %w", errs.Invalid)
	}
	path, err := p.source.LogPath(r.Context(), id)
	if err != nil {
		return nil, err
	}
	// The file system of a log may hang. Requests that hang in it must not use up those of the rest of the page.
	if p.reading.Add(1) > logsAtOnce {
		p.reading.Add(-1)
		return nil, fmt.Errorf("too many logs are read at once: %w", errs.Exhausted)
	}
	defer p.reading.Add(-1)
	return readLog(path, r.URL.Query().Get("from"))
}

func readLog(path, cursor string) (*Log, error) {
	// Never waits: the path could be a pipe, where somebody has replaced the log.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the container has no log file (yet): %w", errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the log: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read the log: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("the log is not a regular file: %w", errs.State)
	}
	identity := identityOf(info)
	log := &Log{Lines: []LogLine{}}
	offset, err := log.start(file, info.Size(), identity, cursor)
	if err != nil {
		return nil, err
	}
	end, err := log.read(file, offset)
	if err != nil {
		return nil, err
	}
	log.Cursor, log.More = fmt.Sprintf("%s:%d", identity, end), info.Size() > offset+logBytes
	return log, nil
}

// identityOf changes when another file has the log's path.
func identityOf(info os.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "0"
	}
	return fmt.Sprintf("%x-%x", stat.Dev, stat.Ino)
}

// start returns where to begin.
func (l *Log) start(file *os.File, size int64, identity, cursor string) (int64, error) {
	if cursor == "" {
		at, err := crilog.TailOffset(file, size, logTailLines)
		// Long lines: the rest would be many answers.
		return max(at, size-logBytes), err
	}
	of, text, _ := strings.Cut(cursor, ":")
	offset, err := strconv.ParseInt(text, 10, 64)
	if err != nil || offset < 0 {
		return 0, fmt.Errorf("from: want the cursor of an earlier answer: %w", errs.Invalid)
	}
	if of != identity || offset > size {
		l.Again = true
		return 0, nil
	}
	return offset, nil
}

// read adds the whole lines from an offset on, and returns where the next line begins.
func (l *Log) read(file *os.File, offset int64) (end int64, err error) {
	section := io.NewSectionReader(file, offset, logBytes)
	lines := crilog.NewReader(section)
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, crilog.ErrMalformed):
			continue // a line that the offset has cut
		case errors.Is(err, io.EOF):
			at, err := section.Seek(0, io.SeekCurrent)
			if err != nil {
				return 0, err
			}
			if rest := int64(len(lines.Rest())); rest < at || at < logBytes {
				return offset + at - rest, nil
			}
			return offset + at, nil // no line is that long: it is no log
		case err != nil:
			return 0, fmt.Errorf("cannot read the log: %w", err)
		}
		l.Lines = append(l.Lines, LogLine{
			Time: line.Time, Error: line.Stream == crilog.Stderr, Text: printable.Text(string(line.Text[:min(len(line.Text), lineBytes)])),
		})
	}
}
