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

// Options configure a Client.
type Options struct {
	// Socket is the supervisor's unix socket.
	Socket string
	// Logger gets lost and regained connections; nil means slog's default.
	Logger *slog.Logger
	// Restart, if set, is called when no supervisor answers at Socket any more: when keeper
	// and supervisor died together, only a client is left to start them.
	Restart func(ctx context.Context) error
	// After, if not nil, is closed when the client may ask for the duplicates of pipes and terminals, which takes time for
	// each container. Until it has them, Attach waits.
	After <-chan struct{}
}

// Client is a connection to one supervisor. It connects again by itself after the
// supervisor's death. A Create or Attach under way returns errs.Unavailable then, and its
// effect is unknown. So does an Exec whose exit code cannot be found. The client repeats the
// other calls: they have the same effect when done twice, except that a Signal may arrive
// twice.
// Calls without a connection wait for one until their context ends, a minute at most. All
// methods are safe for concurrent use. Errors carry a kind of package errs.
//
// A client also holds duplicates of every container's pipes and terminals, and offers them
// to a supervisor that has lost them.
type Client struct {
	link *link
}

// Connect returns a client once it is connected. When ctx ends first, it returns the reason
// why there is no connection. A supervisor with a newer protocol is errs.Unsupported at once.
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

// Close ends the connection. Containers continue to run. A supervisor that was started for its clients
// ends if it has no container and no other client.
func (c *Client) Close() error {
	return c.link.close()
}

// Info describes the supervisor.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	info := new(Info)
	return info, c.link.repeat(ctx, MethodInfo, struct{}{}, info)
}

// Create makes a container up to the point where its init waits to execute the
// user's program. On error the caller calls Remove. Create of a container that exists is
// errs.Exists. See also ProgramError.
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

// Start executes the user's program and returns the init's pid. For a container that was
// started already it returns the same pid. An error of kind Invalid means that the program
// could not be executed. Then an Exit with StartFailed follows.
func (c *Client) Start(ctx context.Context, id string) (pid int, err error) {
	var reply StartReply
	err = c.link.repeat(ctx, MethodStart, Ref{id}, &reply)
	return reply.Pid, err
}

// Signal sends sig to the container's init, or to all its processes. NotFound when no process
// of it runs. When the supervisor dies before it has answered, the client sends the signal
// again. Otherwise a stop would become a kill: a kubelet whose StopContainer has failed stops
// the sandbox next.
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

// ReopenLog opens a new log file at the container's log path, and returns when the output
// goes there. A container that has ended is errs.State.
func (c *Client) ReopenLog(ctx context.Context, id string) error {
	return c.link.repeat(ctx, MethodReopenLog, Ref{id}, nil)
}

// Remove kills the remaining processes of the container and removes all that Create made,
// except its log file. Nil when the container is absent.
func (c *Client) Remove(ctx context.Context, id string) error {
	return c.link.repeat(ctx, MethodRemove, Ref{id}, nil)
}

// List returns every container of which anything is left, also partly created ones.
func (c *Client) List(ctx context.Context) ([]Container, error) {
	var list []Container
	err := c.link.repeat(ctx, MethodList, struct{}{}, &list)
	return list, err
}
