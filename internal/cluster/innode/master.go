package innode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// master is the socket of haproxy's first process.
type master struct{ socket string }

// reloadTime bounds a reload: starting haproxy takes a fraction of a second.
const reloadTime = 30 * time.Second

// reload makes haproxy read its configuration again, and returns when a new process uses it. It
// waits for a haproxy that is about to start.
func (m master) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTime)
	defer cancel()
	before, err := m.until(ctx, func(worker string) bool { return worker != "" })
	if err != nil {
		return fmt.Errorf("haproxy does not run: %w", err)
	}
	// Its answer ends when it reads the configuration, which is not an error.
	if _, err := m.command(ctx, "reload"); err != nil && ctx.Err() != nil {
		return fmt.Errorf("cannot have haproxy read its configuration: %w", err)
	}
	_, err = m.until(ctx, func(worker string) bool { return worker != "" && worker != before })
	if err != nil {
		return fmt.Errorf("haproxy goes on with its former configuration: %w", err)
	}
	return nil
}

// pollPause is the time between two requests: there is no event for a new socket.
const pollPause = 50 * time.Millisecond

// until polls the process of the current configuration until it is as wanted.
func (m master) until(ctx context.Context, wanted func(worker string) bool) (string, error) {
	for {
		answer, err := m.command(ctx, "show proc")
		if err == nil {
			if worker := current(answer); wanted(worker) {
				return worker, nil
			}
			err = errs.Unavailable
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(context.Cause(ctx), err)
		case <-time.After(pollPause):
		}
	}
}

// command sends one command and reads the answer.
func (m master) command(ctx context.Context, order string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", m.socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(conn, order+"\n"); err != nil {
		return "", err
	}
	// It would wait for another command.
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		if err := half.CloseWrite(); err != nil {
			return "", err
		}
	}
	text, err := io.ReadAll(conn)
	return string(text), err
}

// current is the process of the current configuration, as `show proc` lists it; "" is none.
func current(answer string) string {
	of := false
	for line := range strings.Lines(answer) {
		if strings.HasPrefix(line, "#") {
			of = strings.HasPrefix(line, "# workers")
			continue
		}
		if fields := strings.Fields(line); of && len(fields) > 1 && fields[1] == "worker" {
			return fields[0]
		}
	}
	return ""
}
