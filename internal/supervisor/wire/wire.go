// Package wire carries calls, replies, notes and open files over a unix stream
// socket, in both directions at once. It knows nothing of what the messages
// mean.
//
// A frame is an 8-byte header (length of the payload and number of descriptors,
// big endian) and a JSON payload. Descriptors travel with the header's first
// byte.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// MaxPayload bounds one frame; a longer one ends the connection.
const MaxPayload = 16 << 20

const headerLen = 8

// kind is what a message is for.
type kind string

const (
	call   kind = "call"
	cancel kind = "cancel" // of the call with the same id
	reply  kind = "reply"
	note   kind = "note" // a call without a reply
)

type message struct {
	Kind   kind            `json:"kind"`
	ID     uint64          `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
	Error  *wireError      `json:"error,omitempty"`
}

// wireError is an error in a message: its text, the text of its kind, and the cause and
// the path of the errs.Fault in it. An older peer sends no cause, and ignores one.
type wireError struct {
	Kind  string     `json:"kind,omitempty"`
	Text  string     `json:"text"`
	Cause errs.Cause `json:"cause,omitempty"`
	Path  string     `json:"path,omitempty"`
}

func encodeError(err error) *wireError {
	e := &wireError{Text: err.Error()}
	if k := errs.Kind(err); k != nil {
		e.Kind = k.Error()
	}
	var fault *errs.Fault
	if errors.As(err, &fault) {
		e.Cause, e.Path = fault.Cause, fault.Path
	}
	return e
}

func decodeError(e *wireError) error {
	err := &remoteError{text: e.Text}
	for _, k := range errs.Kinds() {
		if k.Error() == e.Kind {
			err.kind = k
		}
	}
	if e.Cause != "" {
		return &errs.Fault{Cause: e.Cause, Path: e.Path, Err: err}
	}
	return err
}

// remoteError is an error that the peer returned: the same text, the same kind.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// writeFrame sends one message; it must not run twice at a time.
func writeFrame(conn *net.UnixConn, m *message, files []*os.File) error {
	payload, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot encode a message: %w", err)
	}
	if len(payload) > MaxPayload || len(files) > sysfd.MaxFDs {
		return fmt.Errorf("message of %d bytes and %d files is too long: %w", len(payload), len(files), errs.Invalid)
	}
	frame := make([]byte, headerLen, headerLen+len(payload))
	binary.BigEndian.PutUint32(frame[0:], uint32(len(payload)))
	binary.BigEndian.PutUint32(frame[4:], uint32(len(files)))
	if len(files) == 0 {
		_, err = conn.Write(append(frame, payload...))
		return err
	}
	if err := sysfd.SendFiles(conn, frame, files); err != nil {
		return err
	}
	_, err = conn.Write(payload)
	return err
}

// readFrame receives one message and the files that came with it.
func readFrame(conn *net.UnixConn) (m *message, files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	var header [headerLen]byte
	n, files, err := sysfd.ReceiveFiles(conn, header[:], "peer")
	if err != nil {
		return nil, files, err
	}
	if _, err := io.ReadFull(conn, header[n:]); err != nil {
		return nil, files, err
	}
	length := binary.BigEndian.Uint32(header[0:])
	if length > MaxPayload {
		return nil, files, fmt.Errorf("frame of %d bytes is too long", length)
	}
	if want := int(binary.BigEndian.Uint32(header[4:])); want != len(files) {
		return nil, files, fmt.Errorf("frame has %d descriptors and says %d", len(files), want)
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(conn, payload); err != nil {
		return nil, files, err
	}
	m = new(message)
	if err := json.Unmarshal(payload, m); err != nil {
		return nil, files, fmt.Errorf("cannot decode a message: %w", err)
	}
	return m, files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// isClosed reports whether an error is the ordinary end of a connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}
