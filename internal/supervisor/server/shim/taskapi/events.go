package taskapi

import (
	"bufio"
	"errors"
	"net"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// acceptPause is the time between attempts to accept a connection, while descriptors or memory are short.
const acceptPause = 100 * time.Millisecond

// Event is what a shim reports. berth finds out by itself what matters, so it only logs them.
type Event struct {
	// Topic is a path, such as /tasks/oom.
	Topic string
}

// ServeEvents serves the events of shims until the listener is closed. A shim does not start without such a
// server.
func ServeEvents(listener net.Listener, each func(e Event)) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		go errs.Protect("events of a shim", func() { serveEvents(conn, each) })
	}
}

func serveEvents(conn net.Conn, each func(e Event)) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		f, err := readFrame(reader)
		if err != nil {
			return
		}
		if f.kind != frameRequest {
			continue
		}
		if e, err := decodeEvent(f.data); err == nil {
			each(e)
		}
		// A Response without a Status, as containerd sends it: some shims cannot decode an empty Status, and end.
		if err := writeFrame(conn, frame{stream: f.stream, kind: frameResponse}); err != nil {
			return
		}
	}
}

// decodeEvent decodes a Request of ttrpc that has a ForwardRequest, which has an Envelope.
func decodeEvent(data []byte) (e Event, err error) {
	var payload, envelope Message
	err = Message(data).Fields(func(f Field) error {
		if f.ID == 3 {
			payload = f.Bytes
		}
		return nil
	})
	if err == nil {
		err = payload.Fields(func(f Field) error {
			if f.ID == 1 {
				envelope = f.Bytes
			}
			return nil
		})
	}
	if err == nil {
		err = envelope.Fields(func(f Field) error {
			if f.ID == 3 {
				e.Topic = f.Text()
			}
			return nil
		})
	}
	return e, err
}
