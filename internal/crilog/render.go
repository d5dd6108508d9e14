// Package crilog renders and parses the log lines of the Container Runtime Interface:
//
//	2006-01-02T15:04:05.000000000Z stdout F text
//
// It is pure: it opens no file and reads no clock.
package crilog

import (
	"bytes"
	"slices"
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

// prefixSize is how many bytes a log line has before its text. The names of both streams
// have one length.
const prefixSize = len("2006-01-02T15:04:05.000000000Z stdout F ")

// Overhead is how many bytes a log line has besides its text.
const Overhead = prefixSize + len("\n")

// prefix is what a log line has before its text.
type prefix [prefixSize]byte

// Renderer turns the output of one stream into log lines that carry one time.
// The result depends on nothing but the renderer's arguments and the bytes given.
type Renderer struct {
	// full is the prefix of a line that ends, part that of one that continues.
	full, part prefix
	maxText    int
	lines      int
}

// NewRenderer makes a renderer for lines of at most maxText bytes of text;
// DefaultMaxText if that is 0.
func NewRenderer(stream Stream, at time.Time, maxText int) *Renderer {
	if maxText <= 0 {
		maxText = DefaultMaxText
	}
	var text prefix
	start := at.UTC().AppendFormat(text[:0], timeFormat)
	start = append(start, ' ')
	start = append(start, stream.String()...)
	copy(text[len(start):], " F ")
	r := &Renderer{full: text, part: text, maxText: maxText}
	r.part[prefixSize-2] = 'P'
	return r
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
		rest := raw[done:]
		switch i := bytes.IndexByte(rest[:min(len(rest), r.maxText+1)], '\n'); {
		case i >= 0:
			// The newline of the output is that of the log line.
			dst = appendLine(dst, &r.full, rest[:i+1])
			done += i + 1
		case len(rest) > r.maxText:
			dst = append(appendLine(dst, &r.part, rest[:r.maxText]), '\n')
			done += r.maxText
		default:
			return dst, done
		}
		r.lines++
	}
	return dst, done
}

// AppendAll appends to dst the log lines for all of raw. If the last one has no
// newline it becomes a P line.
func (r *Renderer) AppendAll(dst, raw []byte) []byte {
	for len(raw) > 0 {
		// No line is longer than the sum of all.
		out, done := r.AppendComplete(dst, raw, len(raw)*(Overhead+1))
		if dst = out; done == 0 {
			r.lines++
			return append(appendLine(dst, &r.part, raw), '\n')
		}
		raw = raw[done:]
	}
	return dst
}

// appendLine appends a prefix and a text, in two copies: most lines are so short that the number
// of calls decides.
func appendLine(dst []byte, start *prefix, text []byte) []byte {
	n, size := len(dst), prefixSize+len(text)
	if cap(dst)-n < size {
		dst = slices.Grow(dst, size)
	}
	dst = dst[:n+size]
	*(*prefix)(dst[n:]) = *start
	copy(dst[n+prefixSize:], text)
	return dst
}
