package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// Options are what a Client is made from.
type Options struct {
	// Socket is the supervisor's unix socket.
	Socket string
	// Logger gets lost and regained connections; nil means slog's default.
	Logger *slog.Logger
	// Restart, if set, is called when no supervisor answers at Socket any more: when keeper
	// and supervisor died together, only a client is left to start them.
	Restart func(ctx context.Context) error
}

// Client is a connection to one supervisor. It connects again by itself after the
// supervisor's death. A Create or Attach under way returns errs.Unavailable then, and its
// effect is not known; so does an Exec whose end cannot be found out. The client repeats the
// other calls, which have the same effect when done twice, but for a Signal, of which two may
// arrive.
// Calls that come while there is no connection wait for one until their context
// ends, a minute at most. All methods are safe for concurrent use. Errors carry a kind of package
// errs.
//
// A client also holds duplicates of every container's pipes and terminals, and offers them
// to a supervisor that has lost them.
type Client struct {
	link *link
}

// Connect returns a client once it is connected, or the reason why
// there was none until ctx ended. A supervisor that speaks a newer protocol is
// errs.Unsupported at once.
func Connect(ctx context.Context, opts Options) (*Client, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	l := newLink(opts)
	go l.run()
	if _, err := l.await(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot connect to the supervisor at %s: %w", opts.Socket, err), l.close())
	}
	return &Client{l}, nil
}

// Close ends the connection. Containers go on.
func (c *Client) Close() error {
	return c.link.close()
}

// Info describes the supervisor.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	info := new(Info)
	return info, c.link.repeat(ctx, MethodInfo, struct{}{}, info)
}

// Create makes a container up to the point where its init waits to execute the
// user's program. On error the caller calls Remove. A second Create of a
// container that is there is errs.Exists; see also ProgramError.
func (c *Client) Create(ctx context.Context, req *CreateRequest) (*Container, error) {
	reply := new(CreateReply)
	files, err := c.link.callFiles(ctx, MethodCreate, req, reply)
	if err != nil {
		return nil, err
	}
	if reply.ProgramError != "" {
		return nil, &ProgramError{reply.ProgramError}
	}
	c.link.held.add(reply.Streams, files)
	return &reply.Container, nil
}

// ProgramError is the error of a Create that failed only because the program cannot be
// executed. Nothing of the container is left. Its kind is Invalid.
type ProgramError struct{ Text string }

func (e *ProgramError) Error() string { return e.Text }

// Unwrap returns the error's kind.
func (e *ProgramError) Unwrap() error { return errs.Invalid }

// Start executes the user's program and returns the init's pid. Repeated for a
// container that was started already it returns the same. An error of kind
// Invalid says that the program could not be executed; an Exit with StartFailed
// follows then.
func (c *Client) Start(ctx context.Context, id string) (pid int, err error) {
	var reply StartReply
	err = c.link.repeat(ctx, MethodStart, Ref{id}, &reply)
	return reply.Pid, err
}

// Signal sends sig to the container's init, or to all its processes. NotFound
// when nothing of it runs. When the supervisor dies before it has answered, the signal
// is sent once more: without it a stop would be a kill, since a kubelet whose
// StopContainer has failed goes on to stop the sandbox.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	return c.link.repeat(ctx, MethodSignal, SignalRequest{id, sig, all}, nil)
}

// Update changes the cgroup limits of a created or running container. Nil fields
// stay as they are.
func (c *Client) Update(ctx context.Context, id string, res *specs.LinuxResources) error {
	data, err := json.Marshal(res)
	if err != nil {
		return fmt.Errorf("cannot encode resources: %w", err)
	}
	return c.link.repeat(ctx, MethodUpdate, UpdateRequest{id, data}, nil)
}

// ReopenLog makes the container's log go to a new file at its log path, and
// returns when it does. A container that has ended is errs.State.
func (c *Client) ReopenLog(ctx context.Context, id string) error {
	return c.link.repeat(ctx, MethodReopenLog, Ref{id}, nil)
}

// Remove kills what is left of the container and removes all that Create made,
// except its log file. Nil when nothing of it is there.
func (c *Client) Remove(ctx context.Context, id string) error {
	return c.link.repeat(ctx, MethodRemove, Ref{id}, nil)
}

// List returns every container of which anything is left, half-made ones too.
func (c *Client) List(ctx context.Context) ([]Container, error) {
	var list []Container
	err := c.link.repeat(ctx, MethodList, struct{}{}, &list)
	return list, err
}
