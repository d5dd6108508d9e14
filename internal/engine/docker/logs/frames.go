package logs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/berthrun/berth/internal/crilog"
)

// readBuffer is the size of the buffer of a stream. A message of 16 KiB, the longest that an
// engine makes by itself, fits.
const readBuffer = 20 << 10

// maxFrame bounds a frame, so that garbage does not fill the memory. Engines take messages of
// up to 1 MB from their plugins.
const maxFrame = 4 << 20

// frameHeader is the length of a frame's header: the stream, three zeros, the length of the
// message as a big-endian number of 32 bits.
const frameHeader = 8

// The streams of frames.
const (
	frameStdout = 1
	frameStderr = 2
	frameError  = 3
)

// frames decodes the stream of a container without a terminal: one frame is one message.
type frames struct {
	in *bufio.Reader
	// used is how much of the buffer the message before took.
	used int
}

func newFrames(in io.Reader) *frames {
	return &frames{in: bufio.NewReaderSize(in, readBuffer)}
}

func (f *frames) next() (message, error) {
	for {
		kind, payload, err := f.frame()
		switch {
		case err != nil:
			return message{}, err
		case len(payload) == 0:
			continue
		case kind == frameError:
			return message{}, &engineError{strings.TrimSpace(string(payload))}
		}
		at, err := parseStamp(payload)
		if err != nil {
			return message{}, err
		}
		m := message{at: at, raw: payload[stampSize:]}
		if kind == frameStderr {
			m.stream = crilog.Stderr
		}
		if len(m.raw) == 0 {
			continue
		}
		return m, nil
	}
}

// frame reads one frame. Its payload is valid until the next call.
func (f *frames) frame() (kind byte, payload []byte, err error) {
	// What was peeked at can be discarded.
	_, _ = f.in.Discard(f.used)
	f.used = 0
	header, err := f.in.Peek(frameHeader)
	if err != nil {
		if len(header) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	kind = header[0]
	size := binary.BigEndian.Uint32(header[4:])
	if kind < frameStdout || kind > frameError || header[1]|header[2]|header[3] != 0 || size > maxFrame {
		return 0, nil, fmt.Errorf("%w: frame header %x", errMalformed, header)
	}
	if frameHeader+int(size) > f.in.Size() {
		payload, err = f.long(int(size))
	} else if payload, err = f.in.Peek(frameHeader + int(size)); err == nil {
		f.used = len(payload)
		payload = payload[frameHeader:]
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return kind, payload, err
}

// long reads a frame that does not fit into the buffer.
func (f *frames) long(size int) ([]byte, error) {
	_, _ = f.in.Discard(frameHeader)
	payload := make([]byte, 0, readBuffer)
	for len(payload) < size {
		// The memory grows with what has arrived, not with what a header promises.
		step := min(size-len(payload), max(len(payload), readBuffer))
		payload = append(payload, make([]byte, step)...)
		if _, err := io.ReadFull(f.in, payload[len(payload)-step:]); err != nil {
			return nil, err
		}
	}
	return payload, nil
}
