package logs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
)

// pieceSize is where engines cut long lines.
const pieceSize = 16 << 10

// terminal decodes the stream of a container with a terminal. It is not framed: each message
// is its time, a space and its text. The end of a line ends a message. A part of a long line
// has no end: the time of the next part follows its text directly. That time is found
//
//   - anywhere, when it equals the time of the part before, as it does for all parts of a line.
//     A program cannot know the time under which its line will be logged, so it cannot write
//     it by accident;
//   - behind 16 KiB of text, when it is any time: journald gives each part a time of its own.
//
// Any other text that looks like a time is text.
type terminal struct {
	in *bufio.Reader
	// used is how much of the buffer the message before took.
	used int
	// open is true between the parts of a line. stamp, at and piece are those of the part:
	// its time as it was read, its time, and how much text of it was read.
	open  bool
	stamp [stampSize]byte
	at    int64
	piece int
}

func newTerminal(in io.Reader) *terminal {
	return &terminal{in: bufio.NewReaderSize(in, readBuffer)}
}

func (t *terminal) next() (message, error) {
	_, _ = t.in.Discard(t.used)
	t.used = 0
	if !t.open {
		if err := t.begin(); err != nil {
			return message{}, err
		}
	}
	for {
		if t.piece == pieceSize {
			if err := t.foreignStamp(); err != nil {
				return message{}, err
			}
		}
		text, err := t.text()
		if err != nil {
			return message{}, err
		}
		if len(text) > 0 {
			t.used = len(text)
			t.piece += len(text)
			t.open = text[len(text)-1] != '\n'
			return message{at: t.at, raw: text}, nil
		}
		// The same line continues with its next part.
		_, _ = t.in.Discard(stampSize)
		t.piece = 0
	}
}

// begin reads the time at the beginning of a line.
func (t *terminal) begin() error {
	stamp, err := t.in.Peek(stampSize)
	if len(stamp) == 0 {
		return err
	}
	if at, bad := parseStamp(stamp); bad == nil {
		t.take(stamp, at)
		return nil
	}
	// Engines write their errors as text into this stream.
	line, err := t.in.ReadSlice('\n')
	if errors.Is(err, io.EOF) && len(line) < stampSize {
		return io.ErrUnexpectedEOF
	}
	const show = 200
	return &engineError{strings.TrimSpace(string(line[:min(len(line), show)]))}
}

func (t *terminal) take(stamp []byte, at int64) {
	copy(t.stamp[:], stamp)
	t.at, t.open, t.piece = at, true, 0
	_, _ = t.in.Discard(stampSize)
}

// foreignStamp takes another time that follows 16 KiB of text.
func (t *terminal) foreignStamp() error {
	for n := 1; ; n++ {
		start, err := t.in.Peek(n)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		// It waits for more only while that is a time so far.
		if len(start) < n || !mayBeStamp(start) {
			return nil
		}
		if n < stampSize {
			continue
		}
		if at, bad := parseStamp(start); bad == nil {
			t.take(start, at)
		}
		return nil
	}
}

// mayBeStamp reports whether text can be the beginning of a time.
func mayBeStamp(text []byte) bool {
	const form = "0000-00-00T00:00:00.000000000Z "
	for i, c := range text {
		if isDigit := c >= '0' && c <= '9'; form[i] == '0' != isDigit || (!isDigit && c != form[i]) {
			return false
		}
	}
	return true
}

// text returns text of the current part that is in the buffer, nothing when the part has
// ended and the time of the next one follows. It does not read across 16 KiB.
func (t *terminal) text() ([]byte, error) {
	for need := 1; ; {
		if _, err := t.in.Peek(need); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		seen, _ := t.in.Peek(t.in.Buffered())
		if len(seen) == 0 {
			return nil, io.EOF
		}
		over := len(seen) < need
		if i := bytes.IndexByte(seen, '\n'); i >= 0 {
			seen, over = seen[:i+1], true
		}
		if i := bytes.Index(seen, t.stamp[:]); i >= 0 {
			return t.within(seen[:i]), nil
		}
		if over {
			return t.within(seen), nil
		}
		// The end may be the beginning of the next part's time.
		if safe := len(seen) - t.overlap(seen); safe > 0 {
			return t.within(seen[:safe]), nil
		}
		need = len(seen) + 1
	}
}

// within cuts text where a part may end.
func (t *terminal) within(text []byte) []byte {
	if room := pieceSize - t.piece; room > 0 && len(text) > room {
		return text[:room]
	}
	return text
}

// overlap returns how many bytes at the end of text may begin the time of the part.
func (t *terminal) overlap(text []byte) int {
	for n := min(len(text), stampSize-1); n > 0; n-- {
		if bytes.HasSuffix(text, t.stamp[:n]) {
			return n
		}
	}
	return 0
}
