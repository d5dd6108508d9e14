package crash

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/test/harness"
)

// followEvery is how often a follower looks, as log collectors do.
const followEvery = 25 * time.Millisecond

// follower reads a container's log while it grows, over rotations, as a collector does: it reads a
// file that became shorter from its start again. So it sees each line exactly once if berth loses,
// doubles and rewrites nothing.
type follower struct {
	path string
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	file   *os.File
	offset int64
	digest hash.Hash // of the open file's bytes, as they were seen
	rest   []byte    // of a log line that is not complete
	lines  map[crilog.Stream]*sequence
	err    error
}

// sequence is what has been read of one stream.
type sequence struct {
	want  func(i int) string
	next  int
	line  []byte
	ended bool
	// cut is an incomplete line: the last one of a container that was killed.
	cut bool
}

func follow(path string) *follower {
	f := &follower{
		path: path, stop: make(chan struct{}), done: make(chan struct{}),
		lines: map[crilog.Stream]*sequence{crilog.Stdout: {want: stdoutLine}, crilog.Stderr: {want: stderrLine}},
	}
	go f.run()
	return f
}

func (f *follower) run() {
	defer close(f.done)
	for {
		select {
		case <-f.stop:
			f.poll()
			f.close()
			return
		case <-time.After(followEvery):
			f.poll()
		}
	}
}

// seen returns how many lines of stdout have been read.
func (f *follower) seen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lines[crilog.Stdout].next
}

// finish ends the follower and checks: whole requires the last line of both streams, otherwise any
// number of complete lines is right.
func (f *follower) finish(whole, tty bool) error {
	close(f.stop)
	<-f.done
	if f.err != nil {
		return f.err
	}
	if !whole {
		return nil
	}
	for stream, seq := range f.lines {
		if (!seq.ended || seq.cut) && (stream == crilog.Stdout || !tty) {
			return fmt.Errorf("%s ends after line %d, its last line is missing", stream, seq.next-1)
		}
	}
	return nil
}

// poll reads what is new.
func (f *follower) poll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.err == nil {
		if f.file == nil && !f.open() {
			return
		}
		f.err = f.read()
		if f.err != nil || !f.rotated() {
			return
		}
		if f.err = f.read(); f.err == nil { // the rest of the old file
			f.err = f.verify()
		}
		f.file.Close()
		f.file = nil
	}
}

func (f *follower) open() bool {
	file, err := os.Open(f.path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			f.err = err
		}
		return false
	}
	f.file, f.offset, f.digest, f.rest = file, 0, sha256.New(), nil
	return true
}

// rotated reports whether another file is at the path.
func (f *follower) rotated() bool {
	there, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	here, err := f.file.Stat()
	return err == nil && !os.SameFile(here, there)
}

func (f *follower) read() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < f.offset {
		f.offset, f.rest = 0, nil
		f.digest.Reset()
	}
	data, err := io.ReadAll(io.NewSectionReader(f.file, f.offset, info.Size()-f.offset))
	if err != nil {
		return err
	}
	f.offset += int64(len(data))
	f.digest.Write(data)
	f.rest = append(f.rest, data...)
	for {
		line, rest, whole := bytes.Cut(f.rest, []byte("\n"))
		if !whole {
			return nil
		}
		f.rest = rest
		if err := f.take(line); err != nil {
			return fmt.Errorf("%s at %d: %w", f.path, f.offset-int64(len(rest)), err)
		}
	}
}

// take checks one line of the log.
func (f *follower) take(raw []byte) error {
	line, err := crilog.Parse(raw)
	if err != nil {
		return err
	}
	seq := f.lines[line.Stream]
	seq.line = append(seq.line, line.Text...)
	if line.Partial {
		return nil
	}
	text := string(bytes.TrimSuffix(seq.line, []byte("\r"))) // a terminal's
	seq.line = seq.line[:0]
	switch want := seq.want(seq.next); {
	case seq.ended || seq.cut:
		return fmt.Errorf("%s: after its last line, %d, comes %q", line.Stream, seq.next-1, shorten(text))
	case text == fmt.Sprintf("end %d", seq.next):
		seq.ended = true
	case text == want:
		seq.next++
	case strings.HasPrefix(want, text):
		seq.cut = true
	case harness.Handled() && line.Stream == crilog.Stderr && seq.next == 0 && strings.HasPrefix(text, "write exec fifo "):
		// The init of a program whose start was killed says so on the stderr that it has.
	default:
		return fmt.Errorf("%s: after line %d comes %q", line.Stream, seq.next-1, shorten(text))
	}
	return nil
}

// verify reads the file again: the lines that were read must still be there, byte for byte.
func (f *follower) verify() error {
	if len(f.rest) > 0 {
		return fmt.Errorf("%s ends in the middle of a line: %q", f.path, shorten(string(f.rest)))
	}
	again := sha256.New()
	if _, err := io.Copy(again, io.NewSectionReader(f.file, 0, f.offset)); err != nil {
		return err
	}
	if !bytes.Equal(again.Sum(nil), f.digest.Sum(nil)) {
		return fmt.Errorf("%s has changed after it was read", f.path)
	}
	return nil
}

func (f *follower) close() {
	if f.file != nil {
		if f.err == nil {
			f.err = f.verify()
		}
		f.file.Close()
	}
}

func shorten(text string) string {
	const most = 60
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
