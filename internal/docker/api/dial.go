package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
)

// dialError is the error of an endpoint that no connection can be made to. It does not unwrap to
// the system's error: the library replaces those by texts of its own.
type dialError struct {
	endpoint, why, fix string
}

func (e *dialError) Error() string {
	return fmt.Sprintf("cannot connect to the Docker engine at %s: %s; %s", e.endpoint, e.why, e.fix)
}

func (e *dialError) Unwrap() error { return errs.Unavailable }

// dialer connects to the endpoint.
func (c *Client) dialer(scheme, address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, scheme, address)
		if err != nil && ctx.Err() == nil {
			return nil, dialFault(c.endpoint, address, err)
		}
		return conn, err
	}
}

// dialFault is the error of an endpoint; address is the path of its socket. The kernel has one error
// for a socket without a listener and for what is not a socket at all.
func dialFault(endpoint, address string, err error) error {
	if what := notSocket(address); what != "" && errors.Is(err, syscall.ECONNREFUSED) {
		return &dialError{endpoint, "it is " + what + ", not a socket", "set docker.endpoint to the engine's socket"}
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &dialError{endpoint, "permission denied", "run berth as root, or as a user who may use the socket"}
	case errors.Is(err, fs.ErrNotExist):
		return &dialError{endpoint, "there is no socket", "start the engine, or set docker.endpoint to its socket"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &dialError{endpoint, "the socket is there, but nothing listens on it", "start the engine, or set docker.endpoint to its socket"}
	case errors.Is(err, syscall.ENOTSOCK), errors.Is(err, syscall.EPROTOTYPE):
		return &dialError{endpoint, "it is not a stream socket", "set docker.endpoint to the engine's socket"}
	}
	var operation *net.OpError
	if errors.As(err, &operation) {
		err = operation.Err
	}
	return &dialError{endpoint, err.Error(), "set docker.endpoint to the engine's socket"}
}

// notSocket says what a path is that is not a socket, "" for a socket and for what cannot be read.
func notSocket(path string) string {
	info, err := os.Stat(path)
	switch {
	case err != nil || info.Mode().Type() == fs.ModeSocket:
		return ""
	case info.Mode().IsRegular():
		return "a regular file"
	case info.IsDir():
		return "a directory"
	}
	return "a special file"
}
