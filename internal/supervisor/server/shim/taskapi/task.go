package taskapi

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Stdio are the paths of a process's streams, "" for none. With Terminal the shim makes a terminal, whose
// output goes to Stdout.
type Stdio struct {
	Terminal              bool
	Stdin, Stdout, Stderr string
}

// Status is that of a process.
type Status int

// The statuses.
const (
	Created Status = 1
	Running Status = 2
	Stopped Status = 3
)

// State is what a shim says of a process.
type State struct {
	ID     string
	Pid    int
	Status Status
	// Code is the exit code of what is Stopped.
	Code int32
}

// Exit is how a process has ended. At is the zero value when the shim does not say when.
type Exit struct {
	Code int32
	At   time.Time
}

// Create makes a container of the spec in the directory bundle. options is an Any.
func (c *Client) Create(ctx context.Context, id, bundle string, io Stdio, options Message) (pid int, err error) {
	request := Message{}.Text(1, id).Text(2, bundle).Flag(4, io.Terminal).
		Text(5, io.Stdin).Text(6, io.Stdout).Text(7, io.Stderr)
	if len(options) > 0 {
		request = request.Embed(10, options)
	}
	return c.callForPid(ctx, "Create", request)
}

// Start starts the program of a container, or of an exec.
func (c *Client) Start(ctx context.Context, id, exec string) (pid int, err error) {
	return c.callForPid(ctx, "Start", process(id, exec))
}

func (c *Client) callForPid(ctx context.Context, method string, request Message) (pid int, err error) {
	answer, err := c.call(ctx, method, request)
	if err != nil {
		return 0, err
	}
	err = answer.decode(func(f Field) {
		if f.ID == 1 {
			pid = number(f)
		}
	})
	return pid, err
}

// Connect returns the shim's own pid. The shim need not have the container.
func (c *Client) Connect(ctx context.Context, id string) (pid int, err error) {
	return c.callForPid(ctx, "Connect", Message{}.Text(1, id))
}

// Exec adds a process to a container. Start starts it.
func (c *Client) Exec(ctx context.Context, id, exec string, io Stdio, spec []byte) error {
	_, err := c.call(ctx, "Exec", process(id, exec).Flag(3, io.Terminal).
		Text(4, io.Stdin).Text(5, io.Stdout).Text(6, io.Stderr).Embed(7, Any(typeURL("Process"), spec)))
	return err
}

// State returns the state of a container, or of an exec.
func (c *Client) State(ctx context.Context, id, exec string) (*State, error) {
	answer, err := c.call(ctx, "State", process(id, exec))
	if err != nil {
		return nil, err
	}
	s := &State{}
	return s, answer.decode(func(f Field) {
		switch f.ID {
		case 1:
			s.ID = strings.ToValidUTF8(f.Text(), "?")
		case 3:
			s.Pid = number(f)
		case 4:
			s.Status = Status(number(f))
		case 9:
			s.Code = int32(number(f)) //nolint:gosec // a code
		}
	})
}

// Wait returns when a container, or an exec, has ended.
func (c *Client) Wait(ctx context.Context, id, exec string) (*Exit, error) {
	answer, err := c.call(ctx, "Wait", process(id, exec))
	if err != nil {
		return nil, err
	}
	return decodeExit(answer, 1)
}

// Delete removes what the shim has of a container, or of an exec, that has ended. The shim has then
// copied the whole output.
func (c *Client) Delete(ctx context.Context, id, exec string) (*Exit, error) {
	answer, err := c.call(ctx, "Delete", process(id, exec))
	if err != nil {
		return nil, err
	}
	return decodeExit(answer, 2)
}

// decodeExit decodes a status, in a field, and the time, in the next one.
func decodeExit(answer Message, field int) (*Exit, error) {
	e := &Exit{}
	return e, answer.decode(func(f Field) {
		switch f.ID {
		case field:
			e.Code = int32(number(f)) //nolint:gosec // number bounds it
		case field + 1:
			e.At = moment(f.Bytes)
		}
	})
}

// Kill sends a signal to a container's init, to all its processes, or to an exec.
func (c *Client) Kill(ctx context.Context, id, exec string, signal int, all bool) error {
	_, err := c.call(ctx, "Kill", process(id, exec).Number(3, uint64(signal)).Flag(4, all)) //nolint:gosec // a signal
	return err
}

// Update changes limits. resources is a LinuxResources of the OCI spec, in JSON.
func (c *Client) Update(ctx context.Context, id string, resources []byte) error {
	_, err := c.call(ctx, "Update", Message{}.Text(1, id).Embed(2, Any(typeURL("LinuxResources"), resources)))
	return err
}

// ResizePty sets the size of a process's terminal, in characters.
func (c *Client) ResizePty(ctx context.Context, id, exec string, width, height uint16) error {
	_, err := c.call(ctx, "ResizePty", process(id, exec).Number(3, uint64(width)).Number(4, uint64(height)))
	return err
}

// CloseIO closes the input of a process.
func (c *Client) CloseIO(ctx context.Context, id, exec string) error {
	_, err := c.call(ctx, "CloseIO", process(id, exec).Flag(3, true))
	return err
}

// Shutdown ends the shim, unless it has containers.
func (c *Client) Shutdown(ctx context.Context, id string) error {
	_, err := c.call(ctx, "Shutdown", Message{}.Text(1, id))
	return err
}

// process names a container, or an exec in it.
func process(id, exec string) Message { return Message{}.Text(1, id).Text(2, exec) }

// typeURL is that of a type of the OCI spec, whose values are JSON.
func typeURL(name string) string {
	return "types.containerd.io/opencontainers/runtime-spec/1/" + name
}

func (m Message) decode(each func(f Field)) error {
	err := m.Fields(func(f Field) error {
		each(f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot decode the answer: %w", err)
	}
	return nil
}

// number is a field of type uint32 or an enumeration, 0 when it is out of the range of pids and codes.
func number(f Field) int {
	if f.Number > 1<<31-1 {
		return 0
	}
	return int(f.Number) //nolint:gosec // checked above
}
