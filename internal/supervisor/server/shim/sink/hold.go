package sink

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// HoldName is the socket of a sink that takes connections to shims; see Hold.
const HoldName = "calls"

const (
	// HoldTime is how long a sink has a connection after the supervisor has died: for a call that is under way.
	HoldTime = 30 * time.Second
	// answerTimeout bounds the wait for a sink that takes a connection.
	answerTimeout = 5 * time.Second
)

// Held is a connection that a sink has, too.
type Held struct{ conn *net.UnixConn }

// Hold gives a connection to a shim to the sink of a directory, too. A shim gives up a call when its connection ends; so
// this one goes on when the supervisor dies. A sink of an earlier version does not take connections.
func Hold(ctx context.Context, dir string, connection *os.File) (*Held, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, HoldName))
	if err != nil {
		return nil, fmt.Errorf("the process that takes the events of shims does not take their connections: %w", err)
	}
	held := &Held{conn.(*net.UnixConn)}
	err = held.conn.SetDeadline(time.Now().Add(answerTimeout))
	if err == nil {
		err = sysfd.SendFiles(held.conn, []byte("h"), []*os.File{connection})
	}
	if err == nil {
		_, err = held.conn.Read(make([]byte, 1))
	}
	if err == nil {
		err = held.conn.SetDeadline(time.Time{})
	}
	if err != nil {
		held.conn.Close()
		return nil, fmt.Errorf("cannot give a connection to the process that takes the events of shims: %w", err)
	}
	return held, nil
}

// Release ends the hold: the call has ended.
func (h *Held) Release() {
	_, _ = h.conn.Write([]byte("r")) // without it, the sink has the connection for a while
	h.conn.Close()
}

// Leave ends the hold of a call that goes on without its caller.
func (h *Held) Leave() { h.conn.Close() }

// serveHolds takes connections until the listener fails, and closes it: then Hold fails at once.
func serveHolds(listener net.Listener) {
	defer listener.Close()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go errs.Protect("hold of a connection", func() { hold(conn.(*net.UnixConn)) })
	}
}

func hold(conn *net.UnixConn) {
	defer conn.Close()
	_, files, err := sysfd.ReceiveFiles(conn, make([]byte, 1), "connection")
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err == nil {
		_, err = conn.Write([]byte("h"))
	}
	if err != nil {
		return
	}
	if n, _ := conn.Read(make([]byte, 1)); n == 0 { // the supervisor has died
		time.Sleep(HoldTime)
	}
}
