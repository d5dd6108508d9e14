package streaming

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// A client may send data and disconnect while the server does not read. No read fails then.
func TestContextEndsWithoutReads(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := watchedListener{inner}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(client, "nobody reads this"); err != nil {
		t.Fatal(err)
	}
	if conn.(*watchedConn).peerGone() {
		t.Error("a living client counts as gone")
	}
	ctx, cancel := sessionContext(withConn(t.Context(), conn), time.Hour)
	defer cancel()
	client.Close()
	within(t, "the end of the session", ctx.Done())
}

// TestStuckConnections: the server does not cut a client at its first write that waits. A write may take as long as the connection may be
// idle, and after the session's work maxLinger.
func TestStuckConnections(t *testing.T) {
	now := time.Now()
	for name, is := range map[string]struct {
		writing, ended time.Duration // how long ago
		idle           time.Duration
		want           bool
	}{
		"nothing is written":                      {ended: time.Hour, idle: time.Minute},
		"a write that waits":                      {writing: time.Hour, idle: 4 * time.Hour},
		"a write that waits for the idle time":    {writing: 5 * time.Hour, idle: 4 * time.Hour, want: true},
		"a write that waits, and the work ended":  {writing: time.Hour, ended: maxLinger / 2, idle: 4 * time.Hour},
		"the end was not taken":                   {writing: time.Hour, ended: 2 * maxLinger, idle: 4 * time.Hour, want: true},
		"the end is taken slowly":                 {writing: time.Second, ended: time.Hour, idle: 4 * time.Hour},
		"the end was not taken in the idle time":  {writing: 3 * time.Second, ended: 3 * time.Second, idle: time.Second, want: true},
		"a status that waits, and the work ended": {writing: 2 * maxLinger, ended: time.Hour, idle: 4 * time.Hour, want: true},
	} {
		c := &watchedConn{}
		if is.writing != 0 {
			c.writing.Store(now.Add(-is.writing).UnixNano())
		}
		if is.ended != 0 {
			c.ended.Store(now.Add(-is.ended).UnixNano())
		}
		if got := c.stuck(is.idle, now); got != is.want {
			t.Errorf("%s: stuck is %v, want %v", name, got, is.want)
		}
	}
}

// TestSlowClientGetsTheClose: data that was written before the end of a session arrives, even at a
// client that sends something afterwards.
func TestSlowClientGetsTheClose(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := watchedListener{inner}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	markHijacked(conn, http.StateHijacked)
	reading := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		reading <- err
	}()
	// More than the client's kernel buffers while the client does not read.
	const all = 16 << 20
	if err := conn.(*watchedConn).Conn.(*net.TCPConn).SetWriteBuffer(all); err != nil {
		t.Fatal(err)
	}
	if err := client.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	written, err := conn.Write(make([]byte, all))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes written, %v; all of it is on its way", written, err)
	}
	for range 2 { // a second call has no effect
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := within(t, "the end of the reading", reading); !errors.Is(err, net.ErrClosed) {
		t.Errorf("who read was told %v", err)
	}
	if _, err := io.WriteString(client, "a ping"); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, client); n != int64(written) || err != nil {
		t.Errorf("the client heard %d bytes of %d, %v", n, written, err)
	}
	client.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for !errors.Is(conn.SetDeadline(time.Unix(1, 0)), net.ErrClosed) {
			time.Sleep(time.Millisecond)
		}
	}()
	within(t, "the end of the connection", closed)
}
