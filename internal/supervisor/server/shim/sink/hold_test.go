package sink

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestHold: the sink has the connection until the hold is released, also when the caller has closed its own.
func TestHold(t *testing.T) {
	dir := t.TempDir()
	listener, err := listen(filepath.Join(dir, HoldName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go serveHolds(listener)
	for name, leave := range map[string]bool{"release": false, "leave": true} {
		t.Run(name, func(t *testing.T) {
			shim, file := connection(t)
			held, err := Hold(t.Context(), dir, file)
			file.Close()
			if err != nil {
				t.Fatal(err)
			}
			expectOpen(t, shim)
			if leave {
				held.Leave()
				expectOpen(t, shim)
				return
			}
			held.Release()
			if err := shim.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := shim.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // of a read
				t.Errorf("the connection is not closed: %v", err)
			}
		})
	}
}

// connection returns both ends of one. file is the caller's.
func connection(t *testing.T) (shim net.Conn, file *os.File) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "shim"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	caller, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	if shim, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shim.Close() })
	file, err = caller.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	return shim, file
}

func expectOpen(t *testing.T, shim net.Conn) {
	t.Helper()
	if err := shim.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := shim.Read(make([]byte, 1))
	if timeout, is := err.(net.Error); !is || !timeout.Timeout() { //nolint:errorlint // of a read
		t.Errorf("the connection has ended: %v", err)
	}
}
