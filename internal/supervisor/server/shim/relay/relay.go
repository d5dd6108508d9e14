// Package relay is the process between a stream of berth's and a shim. A container has one if it has an
// input or a terminal, and so has a command.
//
// A shim keeps the input of a process open until it is told otherwise: the relay tells it when the input has
// ended. And a shim keeps the terminals that it makes to itself: the relay makes another one, which berth
// gets in its place, and passes on what goes through it and its size. The relay outlives the
// supervisor, as the shim does.
package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Role is the first argument of the program berth-supervisor as a relay. The second one is an Order in JSON.
const Role = "shim-relay"

// Order is the process whose streams a relay passes on.
type Order struct {
	// Address is that of the shim.
	Address   taskapi.Address `json:"address"`
	Namespace string          `json:"namespace"`
	ID        string          `json:"id"`
	// Exec is that of a command, "" for the container's init.
	Exec string `json:"exec,omitempty"`
	// Terminal is true for a process with a terminal.
	Terminal bool `json:"terminal,omitempty"`
	// Record is the path of the file that names the relay. The relay removes it before it ends by itself: while the file is
	// there, the end of the relay is a fault.
	Record string `json:"record"`
}

// The descriptors of a relay.
const (
	// BegunFD has an end, or a byte, when the shim has opened its streams.
	BegunFD = 3
	// InputFD is the pipe from which the shim reads.
	InputFD = 4
	// SourceFD is the input of a process without a terminal. With a terminal it is a socket, to which the relay
	// sends the terminal's master.
	SourceFD = 5
	// OutputFD is the pipe to which the shim writes, with a terminal.
	OutputFD = 6
)

// callTimeout bounds a call of the shim.
const callTimeout = 5 * time.Second

// Run is the main function of a relay.
func Run(text string) error {
	r := &relay{}
	if err := json.Unmarshal([]byte(text), &r.order); err != nil {
		return fmt.Errorf("cannot read the order: %w", err)
	}
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
	defer r.forget()
	r.begun = make(chan struct{})
	begun := os.NewFile(BegunFD, "begun")
	go func() {
		var buf [1]byte
		_, _ = begun.Read(buf[:])
		close(r.begun)
	}()
	input, err := sysfd.Pollable(os.NewFile(InputFD, "input"))
	if err != nil {
		return err
	}
	if r.order.Terminal {
		return r.terminal(input)
	}
	return r.input(input)
}

// forget removes the record, unless it names another relay: that of the same command, which another supervisor starts again.
// The container may be gone, with its directory.
func (r *relay) forget() {
	var named struct {
		Pid int `json:"pid"`
	}
	data, err := os.ReadFile(r.order.Record)
	if err == nil && json.Unmarshal(data, &named) == nil && named.Pid == os.Getpid() {
		_ = os.Remove(r.order.Record)
	}
}

type relay struct {
	order Order
	// begun is closed when the shim has opened its streams.
	begun chan struct{}
}

// input passes an input on, until it ends or the shim does not read it any more.
func (r *relay) input(to *os.File) error {
	from, err := sysfd.Pollable(os.NewFile(SourceFD, "source"))
	if err != nil {
		return err
	}
	go func() {
		awaitNoReader(to)
		r.forget()
		os.Exit(0) // the process has ended
	}()
	err = pass(to, from)
	<-r.begun
	to.Close()
	closeErr := r.call(func(ctx context.Context, c *taskapi.Client) error {
		return c.CloseIO(ctx, r.order.ID, r.order.Exec)
	})
	// A process that has ended needs no end of its input.
	return errors.Join(err, errs.IgnoreNotFound(closeErr))
}

// pass copies with reads and writes: a terminal cannot be spliced to.
func pass(to io.Writer, from io.Reader) error {
	_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
	return err
}

// awaitNoReader returns when no process has the reading end of a pipe.
func awaitNoReader(pipe *os.File) {
	own, err := sysfd.Duplicate(pipe)
	if err != nil {
		return
	}
	set := []unix.PollFd{{Fd: int32(own.Fd())}} //nolint:gosec // a descriptor
	for {
		_, err := unix.Poll(set, -1)
		if err == nil || !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// call calls the shim.
func (r *relay) call(do func(ctx context.Context, c *taskapi.Client) error) error {
	ctx, stop := context.WithTimeout(context.Background(), callTimeout)
	defer stop()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.order.Address.Socket)
	if err != nil {
		return err
	}
	client := taskapi.NewClient(conn, r.order.Address.Version, r.order.Namespace)
	defer client.Close()
	return do(ctx, client)
}
