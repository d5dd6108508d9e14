package sysfd_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// packetPair returns both ends of a socket that preserves message boundaries.
func packetPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "end")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		ends[i] = conn.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// If a process dies with unread requests, the connection is reset. Its earlier answers can still be
// read. If one were lost, the peer would repeat the request.
func TestResponsesSurviveAReset(t *testing.T) {
	client, server := packetPair(t)
	for _, question := range []string{"first", "second"} {
		if err := sysfd.SendFDs(client, []byte(question), nil); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 100)
	if _, _, err := sysfd.ReceiveFDs(server, buf); err != nil {
		t.Fatal(err)
	}
	if err := sysfd.SendFDs(server, []byte("answer"), nil); err != nil {
		t.Fatal(err)
	}
	server.Close()
	n, _, err := sysfd.ReceiveFDs(client, buf)
	if err != nil || string(buf[:n]) != "answer" {
		t.Fatalf("got %q, %v", buf[:n], err)
	}
	if _, _, err := sysfd.ReceiveFDs(client, buf); !errors.Is(err, io.EOF) {
		t.Errorf("then %v, want EOF", err)
	}
}
