package streaming

import (
	"io"
	"net"
	"testing"
)

// A client may send and go away while nobody reads: no read fails then.
func TestContextEndsThoughNobodyReads(t *testing.T) {
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
	ctx, cancel := sessionContext(withConn(t.Context(), conn))
	defer cancel()
	client.Close()
	within(t, "the end of the session", ctx.Done())
}
