package logs

import (
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

// message is what the engine logged at one time, or a part of that.
type message struct {
	// at is the engine's time in nanoseconds since 1970. All parts of a long line have the
	// time of its first part, except with journald.
	at     int64
	stream crilog.Stream
	// raw is output of the container. A newline is its last byte or absent. Valid until the
	// next message is read.
	raw []byte
}

// decoder reads messages from the answer of the logs API. next returns io.EOF at the end of the
// answer, io.ErrUnexpectedEOF when it ends inside of a message, an *engineError when the engine
// reports one in the stream, and an error that wraps errMalformed for anything else.
type decoder interface {
	next() (message, error)
}

// errMalformed is wrapped by errors about a stream that is none of log messages.
var errMalformed = errors.New("malformed stream of log messages")

// engineError is an error that the engine puts into the stream instead of a message. The
// stream ends after it.
type engineError struct{ text string }

func (e *engineError) Error() string { return "the engine reports: " + e.text }

// stampSize is the length of the time before each message, with the space behind it: RFC 3339
// in UTC, always with nanoseconds.
const stampSize = len("2006-01-02T15:04:05.000000000Z ")

// The times that fit into a message.
const (
	firstYear = 1970
	lastYear  = 2261
)

// parseStamp reads the time that a message begins with.
func parseStamp(raw []byte) (at int64, err error) {
	if len(raw) < stampSize || raw[stampSize-1] != ' ' {
		return 0, fmt.Errorf("%w: a message without a time", errMalformed)
	}
	var t time.Time
	if err := t.UnmarshalText(raw[:stampSize-1]); err != nil || t.Year() < firstYear || t.Year() > lastYear {
		return 0, fmt.Errorf("%w: %q is not a time", errMalformed, raw[:stampSize-1])
	}
	return t.UnixNano(), nil
}
