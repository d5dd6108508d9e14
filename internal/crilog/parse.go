package crilog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrMalformed is wrapped by every error about the format of a line.
var ErrMalformed = errors.New("malformed log line")

// Line is one parsed log line.
type Line struct {
	Time   time.Time
	Stream Stream
	// Partial reports whether the container's line continues in the next log line of the stream.
	Partial bool
	// Text is without the newline that a line which is not partial ends with.
	Text []byte
}

// Parse reads one log line, with or without its newline. Text points into line.
// It also takes what other runtimes write: any offset from UTC, fewer digits of
// a second, more tags behind the first ("F:tag"). Errors wrap ErrMalformed.
func Parse(line []byte) (Line, error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	stamp, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return Line{}, badLine(line, "it has no stream")
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Line{}, badLine(line, "its time is not RFC 3339")
	}
	stream, rest, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return Line{}, badLine(line, "it has no tag")
	}
	parsed := Line{Time: at}
	switch string(stream) {
	case "stdout":
		parsed.Stream = Stdout
	case "stderr":
		parsed.Stream = Stderr
	default:
		return Line{}, badLine(line, "its stream is neither stdout nor stderr")
	}
	tags, text, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return Line{}, badLine(line, "it has no text")
	}
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	switch string(tag) {
	case "P":
		parsed.Partial = true
	case "F":
	default:
		return Line{}, badLine(line, "its tag is neither P nor F")
	}
	parsed.Text = text
	return parsed, nil
}

func badLine(line []byte, why string) error {
	const show = 80
	if len(line) > show {
		line = line[:show]
	}
	return fmt.Errorf("%w %q: %s", ErrMalformed, line, why)
}

// maxLogLine bounds what Reader takes for one line, so that a file which is no
// log cannot fill the memory.
const maxLogLine = 4 << 20

// Reader reads log lines one by one, also from a file that is still written.
type Reader struct {
	in *bufio.Reader
	// part is the start of a line whose end was not there yet.
	part []byte
	// whole reports whether the last Next returned part as a whole line.
	whole bool
}

// NewReader makes a reader.
func NewReader(in io.Reader) *Reader {
	return &Reader{in: bufio.NewReaderSize(in, DefaultMaxText+2*Overhead)}
}

// Next returns the next line; its Text is valid until the next call. io.EOF means
// that there is no complete line now. If in has more later, Next continues with it. After an error
// that wraps ErrMalformed the next call continues after the malformed line.
func (r *Reader) Next() (Line, error) {
	if r.whole {
		r.part, r.whole = r.part[:0], false
	}
	for {
		chunk, err := r.in.ReadSlice('\n')
		if err == nil && len(r.part) == 0 {
			return Parse(chunk)
		}
		r.part = append(r.part, chunk...)
		switch {
		case err == nil:
			r.whole = true
			return Parse(r.part)
		case errors.Is(err, bufio.ErrBufferFull) && len(r.part) <= maxLogLine:
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			err := badLine(r.part, "it is too long")
			r.part = r.part[:0]
			return Line{}, err
		}
		return Line{}, err
	}
}

// Rest returns the unfinished line at the end of what Next has read. Together
// with the offset of the input it gives the start of the next line.
func (r *Reader) Rest() []byte {
	if r.whole {
		return nil
	}
	return r.part
}

// TailOffset returns where in a log of the given size its last n log lines start.
func TailOffset(in io.ReaderAt, size int64, n int) (int64, error) {
	if n <= 0 {
		return size, nil
	}
	const block = 32 << 10
	buf := make([]byte, block)
	// No line starts after the newline that ends the last line.
	for end := size; end > 0; {
		start := max(end-block, 0)
		chunk := buf[:end-start]
		if _, err := in.ReadAt(chunk, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("cannot read the end of a log: %w", err)
		}
		if end == size && chunk[len(chunk)-1] == '\n' {
			chunk = chunk[:len(chunk)-1]
		}
		for {
			i := bytes.LastIndexByte(chunk, '\n')
			if i < 0 {
				break
			}
			if n--; n == 0 {
				return start + int64(i) + 1, nil
			}
			chunk = chunk[:i]
		}
		end = start
	}
	return 0, nil
}
