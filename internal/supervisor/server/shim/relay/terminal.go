package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// terminal makes a terminal, and connects it to the shim's pipes until the process has ended.
func (r *relay) terminal(input *os.File) error {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	terminal, err := makeTerminal(SourceFD)
	if err != nil {
		return err
	}
	defer terminal.Close()
	go r.resize(terminal, resized)
	go func() {
		err := pass(input, terminal)
		if err == nil || errors.Is(err, syscall.EIO) { // no process of berth has the master any more
			<-r.begun
			_ = r.call(func(ctx context.Context, c *taskapi.Client) error {
				return c.Kill(ctx, r.order.ID, r.order.Exec, int(syscall.SIGHUP), false)
			}) // as the kernel does it for a terminal
		}
	}()
	output, err := sysfd.Pollable(os.NewFile(OutputFD, "output"))
	if err != nil {
		return err
	}
	if err := pass(terminal, output); err != nil {
		return errors.Join(err, pass(io.Discard, output)) // the shim must not wait for a terminal that is gone
	}
	return nil
}

// makeTerminal makes a terminal that changes nothing, which is the controlling one of this process. It sends
// the master over the socket of a descriptor, and keeps the other side.
func makeTerminal(socket int) (*os.File, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make a terminal: %w", err)
	}
	master := os.NewFile(uintptr(fd), "terminal")
	defer master.Close()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, fmt.Errorf("cannot unlock a terminal: %w", err)
	}
	slave, err := openPeer(fd)
	if err != nil {
		return nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	if err := setUp(slave); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set up a terminal: %w", err), unix.Close(slave))
	}
	conn, err := sysfd.FileUnixConn(os.NewFile(uintptr(socket), "console"))
	if err == nil {
		err = sysfd.SendFiles(conn, []byte("fd"), []*os.File{master})
		conn.Close()
	}
	terminal := os.NewFile(uintptr(slave), "terminal")
	if err != nil {
		terminal.Close()
		return nil, err
	}
	return sysfd.Pollable(terminal)
}

// openPeer opens the other side of a terminal by its name.
func openPeer(master int) (int, error) {
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, err
	}
	return unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
}

// setUp lets a terminal pass every byte as it is, and makes it the controlling one: then SIGWINCH
// comes with each change of its size.
func setUp(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag &^= unix.CSIZE | unix.PARENB
	t.Cflag |= unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TIOCSCTTY, 0)
}

// resize passes the size on, at the beginning and with each change.
func (r *relay) resize(terminal *os.File, resized <-chan os.Signal) {
	<-r.begun
	last := unix.Winsize{}
	for {
		var size *unix.Winsize
		err := sysfd.With(terminal, func(fd int) (err error) {
			size, err = unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
			return err
		})
		if err != nil {
			return // closed
		}
		if *size != last {
			last = *size
			_ = r.call(func(ctx context.Context, c *taskapi.Client) error {
				return c.ResizePty(ctx, r.order.ID, r.order.Exec, size.Col, size.Row)
			}) // the process may have ended
		}
		<-resized
	}
}
