package wire

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// FuzzFrame: any data from a peer is a message that can be sent on, or an error. It never uses more
// memory than the limit of a frame.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0e\x00\x00\x00\x00{\"kind\":\"note\"}"))
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x00\x00{}"))
	f.Add([]byte("\xff\xff\xff\xff\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		near, far := sockets(t)
		go func() {
			_, _ = far.Write(data) // the reader may not need all of it
			far.Close()
		}()
		defer near.Close()
		for {
			m, files, err := readFrame(near)
			if err != nil {
				return
			}
			if len(files) > 0 {
				t.Fatalf("%d files came out of bytes", len(files))
			}
			a, b := sockets(t)
			go func() {
				defer a.Close()
				if err := writeFrame(a, m, nil); err != nil {
					t.Errorf("%+v cannot be sent: %v", m, err)
				}
			}()
			if again, _, err := readFrame(b); err != nil || again.Kind != m.Kind || again.ID != m.ID || again.Method != m.Method {
				t.Errorf("%+v became %+v, %v", m, again, err)
			}
			b.Close()
		}
	})
}

func sockets(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "peer")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = conn.(*net.UnixConn)
	}
	return conns[0], conns[1]
}
