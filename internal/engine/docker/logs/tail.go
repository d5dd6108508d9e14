package logs

import (
	"bytes"
	"errors"
	"io"
	"math"

	"github.com/berthrun/berth/internal/crilog"
)

// scan reads lines of a log, adds them to written and returns the unfinished last line. first
// is the time of the first line, 0 when there is none. Lines of other programs are skipped.
func scan(in io.Reader, written *progress) (torn []byte, first int64) {
	r := crilog.NewReader(in)
	for {
		line, err := r.Next()
		if errors.Is(err, crilog.ErrMalformed) {
			continue
		}
		if err != nil {
			return bytes.Clone(r.Rest()), first
		}
		size := len(line.Text)
		if !line.Partial {
			size++
		}
		at := line.Time.UnixNano()
		if first == 0 {
			first = at
		}
		if size == 0 {
			continue
		}
		written.Streams[line.Stream].advance(at, size, line.Partial)
		written.Last = at
	}
}

// tailWindows are how many bytes at the end of a log are read when there is no record: more
// when the end of a stream is not in the first.
func tailWindows() []int64 { return []int64{1 << 20, 16 << 20} }

// scanTail finds out from a log without a record what it contains. files are the log and the
// files that it was rotated to, newest first; whole is true when there are no others. The
// record is lost with the machine's power, so the container has ended, and only lines that
// the engine has and the log has not are of interest.
func scanTail(files []*logFile, whole bool) (written progress, torn []byte, err error) {
	for i, window := range tailWindows() {
		last := i == len(tailWindows())-1
		var first int64
		var all bool
		if written, torn, first, all, err = scanWindow(files, window); err != nil {
			return progress{}, nil, err
		}
		if all && whole {
			return written, torn, nil
		}
		missing := false
		for s := range written.Streams {
			missing = missing || written.Streams[s].At == 0
		}
		if missing && !last && !all {
			continue
		}
		for s := range written.Streams {
			// What this stream had to say before the window is in the log.
			if c := &written.Streams[s]; c.At == 0 && first != 0 {
				c.At, c.High = first, first
			}
		}
		return written, torn, nil
	}
	return written, torn, nil
}

// scanWindow reads the last bytes of files, which are newest first. all is true when it has
// read all of them. torn is the unfinished line of the newest one.
func scanWindow(files []*logFile, window int64) (written progress, torn []byte, first int64, all bool, err error) {
	type section struct {
		file         *logFile
		offset, size int64
	}
	var sections []section
	all = true
	for _, f := range files {
		st, err := f.state()
		if err != nil {
			return progress{}, nil, 0, false, err
		}
		take := min(st.Size, window)
		sections = append(sections, section{f, st.Size - take, st.Size})
		window -= take
		if take < st.Size {
			all = false
		}
		if window == 0 {
			all = all && len(sections) == len(files)
			break
		}
	}
	for i := len(sections) - 1; i >= 0; i-- {
		s := sections[i]
		var at int64
		err := s.file.read(s.offset, s.size, func(in io.Reader) {
			// The first line begins before the window. What is left of it is malformed, but
			// for a line that contains another.
			torn, at = scan(in, &written)
		})
		if err != nil {
			return progress{}, nil, 0, false, err
		}
		if first == 0 {
			first = at
		}
	}
	return written, torn, first, all, nil
}

// rescan brings written up to date with what f has behind offset: lines of a process that was
// killed before it stored its record.
func rescan(f *logFile, offset int64, written *progress) (torn []byte, end int64, err error) {
	st, err := f.state()
	if err != nil {
		return nil, 0, err
	}
	if st.Size <= offset {
		return nil, st.Size, nil
	}
	err = f.read(offset, math.MaxInt64, func(in io.Reader) {
		counted := &countingReader{in: in}
		torn, _ = scan(counted, written)
		end = offset + counted.n
	})
	return torn, end - int64(len(torn)), err
}

type countingReader struct {
	in io.Reader
	n  int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	r.n += int64(n)
	return n, err
}
