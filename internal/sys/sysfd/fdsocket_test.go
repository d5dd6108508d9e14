package sysfd

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

func TestPeekLeavesTheDescriptor(t *testing.T) {
	receiver, sender, err := FDSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := PeekFD(short, receiver); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("peek at nothing: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		defer sender.Close()
		defer w.Close()
		conn, err := net.FileConn(sender)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if err := SendFiles(conn.(*net.UnixConn), []byte("name"), []*os.File{w}); err != nil {
			t.Error(err)
		}
	}()
	for i := range 3 {
		fd, err := PeekFD(t.Context(), receiver)
		if err != nil {
			t.Fatalf("peek %d: %v", i, err)
		}
		f := os.NewFile(uintptr(fd), "w")
		if _, err := f.Write([]byte{byte('a' + i)}); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "abc" {
		t.Errorf("pipe has %q %v", got, err)
	}
}

func TestPeekOfADeadSender(t *testing.T) {
	receiver, sender, err := FDSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	sender.Close()
	if _, err := PeekFD(t.Context(), receiver); !errors.Is(err, errs.NotFound) {
		t.Errorf("got %v", err)
	}
}

func TestAwaitReadableStops(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	stop := make(chan struct{})
	close(stop)
	if has, err := AwaitReadable(t.Context(), r, stop); has || err != nil {
		t.Errorf("empty and stopped: %v %v", has, err)
	}
	w.Write([]byte("x"))
	if has, err := AwaitReadable(t.Context(), r, stop); !has || err != nil {
		t.Errorf("full and stopped: %v %v", has, err)
	}
	if n, err := r.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("the byte was taken: %d %v", n, err)
	}
}

// openPty opens a pty of a separate devpts.
func openPty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	master, err = NewTerminal(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := With(master, func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0) }); err != nil {
		t.Fatal(err)
	}
	var peer uintptr
	err = With(master, func(fd int) error {
		var errno unix.Errno
		peer, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slave = os.NewFile(peer, "slave")
	t.Cleanup(func() { master.Close(); slave.Close() })
	return master, slave
}

func TestCopyTerminalCopiesAllAndEnds(t *testing.T) {
	master, slave := openPty(t)
	r, w, err := OutputPipe(Owner{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := ResizeTerminal(master, 120, 33); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- CopyTerminal(t.Context(), master, w) }()
	// More than a pipe can hold, so that the copy has to wait.
	const lines = 20000
	go func() {
		for range lines {
			if _, err := slave.WriteString("0123456789abcde\n"); err != nil {
				t.Error(err)
			}
		}
		slave.Close()
	}()
	got := 0
	buf := make([]byte, 1<<16)
	for want := lines * len("0123456789abcde\r\n"); got < want; {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the copy goes on without anybody at the terminal")
	}
}

func TestCopyTerminalEndsWithContext(t *testing.T) {
	master, _ := openPty(t)
	r, w, err := OutputPipe(Owner{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- CopyTerminal(ctx, master, w) }()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestCopyTerminalIntoAPipeThatItFills: the last output of a terminal that is closed takes the last room in the pipe. The copy ends
// when the pipe has room again.
func TestCopyTerminalIntoAPipeThatItFills(t *testing.T) {
	master, slave := openPty(t)
	r, w, err := OutputPipe(Owner{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	size, err := unix.FcntlInt(w.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	early := make([]byte, size-os.Getpagesize())
	if _, err := w.Write(early); err != nil {
		t.Fatal(err)
	}
	const last = "last words"
	if _, err := slave.WriteString(last); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	ended := make(chan error, 1)
	go func() { ended <- CopyTerminal(t.Context(), master, w) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, err := PipeBuffered(r); err != nil || n == len(early)+len(last) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the pipe has %d bytes", n)
		}
	}
	time.Sleep(50 * time.Millisecond) // so that the copy waits
	if _, err := io.ReadFull(r, make([]byte, len(early)+len(last))); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the copy waits for a terminal that has ended")
	}
}
