// Package crilog renders and parses the log lines of the Container Runtime Interface:
//
//	2006-01-02T15:04:05.000000000Z stdout F text
//
// It is pure: it opens no file and reads no clock.
package crilog

import (
	"bytes"
	"time"
)

// Stream is one of a container's outputs.
type Stream uint8

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// Streams is how many there are; a Stream is an index below it.
const Streams = 2

// String returns the stream's name in log lines.
func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// DefaultMaxText is how many bytes of text a log line holds at most unless
// configured otherwise. A container's line that is longer is cut into several.
const DefaultMaxText = 16 << 10

// timeFormat has a constant width, so that the length of what is rendered does
// not depend on the time.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// Overhead is how many bytes a log line has besides its text.
const Overhead = len("2006-01-02T15:04:05.000000000Z stdout F \n")

// Renderer turns the output of one stream into log lines that carry one time.
// The result depends on nothing but the renderer's arguments and the bytes given.
type Renderer struct {
	prefix  []byte
	maxText int
	lines   int
}

// NewRenderer makes a renderer for lines of at most maxText bytes of text;
// DefaultMaxText if that is 0.
func NewRenderer(stream Stream, at time.Time, maxText int) *Renderer {
	if maxText <= 0 {
		maxText = DefaultMaxText
	}
	prefix := make([]byte, 0, Overhead)
	prefix = at.UTC().AppendFormat(prefix, timeFormat)
	prefix = append(prefix, ' ')
	prefix = append(prefix, stream.String()...)
	prefix = append(prefix, ' ')
	return &Renderer{prefix: prefix, maxText: maxText}
}

// Lines returns how many log lines the renderer has made.
func (r *Renderer) Lines() int { return r.lines }

// AppendComplete appends to dst the log lines for what is complete at the start
// of raw, and returns how many bytes of raw they stand for. Complete is a line
// with its newline, and a piece of maxText bytes of which it is known that its
// line continues: the next byte decides between P and F. It stops when it has
// appended limit bytes or more, but never inside of a line.
//
// The bytes returned as done decide the result alone: AppendAll(dst, raw[:done])
// appends the same, whatever follows them. Repeating a write after a crash depends on this.
func (r *Renderer) AppendComplete(dst, raw []byte, limit int) (out []byte, done int) {
	start := len(dst)
	for done < len(raw) && len(dst)-start < limit {
		text, used, full := r.cut(raw[done:])
		if used == 0 {
			break
		}
		dst = r.appendLine(dst, text, full)
		done += used
	}
	return dst, done
}

// AppendAll appends to dst the log lines for all of raw. If the last one has no
// newline it becomes a P line.
func (r *Renderer) AppendAll(dst, raw []byte) []byte {
	for len(raw) > 0 {
		text, used, full := r.cut(raw)
		if used == 0 {
			return r.appendLine(dst, raw, false)
		}
		dst = r.appendLine(dst, text, full)
		raw = raw[used:]
	}
	return dst
}

// cut returns the text of the first log line of raw, how many bytes of raw it
// stands for (0 if that cannot be known yet), and if it ends its line.
func (r *Renderer) cut(raw []byte) (text []byte, used int, full bool) {
	look := raw[:min(len(raw), r.maxText+1)]
	if i := bytes.IndexByte(look, '\n'); i >= 0 {
		return raw[:i], i + 1, true
	}
	if len(raw) > r.maxText {
		return raw[:r.maxText], r.maxText, false
	}
	return nil, 0, false
}

func (r *Renderer) appendLine(dst, text []byte, full bool) []byte {
	r.lines++
	dst = append(dst, r.prefix...)
	if full {
		dst = append(dst, "F "...)
	} else {
		dst = append(dst, "P "...)
	}
	dst = append(dst, text...)
	return append(dst, '\n')
}
