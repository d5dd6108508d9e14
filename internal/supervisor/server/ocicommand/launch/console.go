package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// console is the socket to which the program sends the master of the terminal.
type console struct {
	// path leads through a descriptor of the directory: the path of a socket is short.
	path     string
	file     string
	dir      *os.File
	listener *net.UnixListener
	// sent has the outcome, once.
	sent chan error
}

// listenConsole makes a socket in dir, and passes what comes to the descriptor to.
func listenConsole(dir string, to int) (*console, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("console-%d.sock", os.Getpid())
	c := &console{
		path: fmt.Sprintf("/proc/%d/fd/%d/%s", os.Getpid(), d.Fd(), name),
		file: filepath.Join(dir, name), dir: d, sent: make(chan error, 1),
	}
	c.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: c.path, Net: "unix"})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("cannot listen for the terminal: %w", err)
	}
	c.listener.SetUnlinkOnClose(false)
	go func() { c.sent <- c.pass(to) }()
	return c, nil
}

func (c *console) pass(to int) error {
	conn, err := c.listener.AcceptUnix()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, files, err := sysfd.ReceiveFiles(conn, make([]byte, 4096), "terminal")
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if len(files) != 1 {
		return fmt.Errorf("%d descriptors came in the place of a terminal", len(files))
	}
	return sendFile(to, files[0])
}

// await waits until the terminal was passed on.
func (c *console) await(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, consoleTimeout)
	defer stop()
	select {
	case err := <-c.sent:
		return err
	case <-ctx.Done():
		return errors.New("it has sent no terminal")
	}
}

func (c *console) close() {
	c.listener.Close()
	c.dir.Close()
	_ = os.Remove(c.file) // it goes with the container's directory at the latest
}

// sendFile sends a file over the socket of a descriptor, which stays open.
func sendFile(socket int, f *os.File) error {
	conn, err := sysfd.FileUnixConn(os.NewFile(uintptr(socket), "socket"))
	if err != nil {
		return err
	}
	defer conn.Close()
	return sysfd.SendFiles(conn, []byte("fd"), []*os.File{f})
}
