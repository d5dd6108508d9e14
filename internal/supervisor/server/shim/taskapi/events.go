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

// ServeEvents answers the events of shims until the listener is closed. berth finds out by itself what they say.
// A shim does not start without such a server.
func ServeEvents(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		go errs.Protect("events of a shim", func() { serveEvents(conn) })
	}
}

func serveEvents(conn net.Conn) {
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
		// A Response without a Status, as containerd sends it: some shims cannot decode an empty Status, and end.
		if err := writeFrame(conn, frame{stream: f.stream, kind: frameResponse}); err != nil {
			return
		}
	}
}
