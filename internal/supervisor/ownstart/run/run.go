// Package run starts processes in containers that run, with a child of berth's own: see package child.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Exec is a process to start. A nil file is none.
type Exec struct {
	// Init is a pidfd of the container's init, Pid its pid.
	Init *os.File
	Pid  int
	// Namespaces are those of the init to join but the mount namespace, which is always joined:
	// flags CLONE_NEWPID, ...
	Namespaces int
	// Cgroup is the directory of a cgroup v2 to be born in, Tasks are files named "tasks" of
	// cgroups v1 to join.
	Cgroup *os.File
	Tasks  []*os.File
	// Proc is the root directory of the host's procfs.
	Proc *os.File
	// Pidfd is a socket on which the process sends its own pidfd before it runs the program.
	Pidfd *os.File
	// Stdio are the descriptors 0 to 2, none of them nil. Console is a socket for the master of a
	// terminal, which then takes their places; Width and Height are 0 to keep its own.
	Stdio         [3]*os.File
	Console       *os.File
	Width, Height int
	Process       *finish.Process
}

// NotBegunError means that no child was started: nothing has happened in the container.
type NotBegunError struct{ Err error }

func (e *NotBegunError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NotBegunError) Unwrap() error { return e.Err }

// Start starts the process and returns its pid, a child of this process, once it executes the program.
// On error nothing is left of it. The error is a *NotBegunError, also when ctx ends before there is a child,
// ctx.Err(), or has the kind of a failure.Failure.
func Start(ctx context.Context, program *fork.Program, e *Exec) (pid int, err error) {
	request := &fork.Request{
		Role:   order.RoleExec,
		Join:   join(e, e.Namespaces&^(late|unix.CLONE_NEWUSER)),
		Cgroup: e.Cgroup,
		Stdio:  e.Stdio,
	}
	var spaces []*os.File
	if e.Namespaces&unix.CLONE_NEWUSER != 0 {
		request.User = e.Init
		if spaces, err = openSpaces(e); err != nil {
			return 0, err
		}
		defer closeAll(spaces)
	}
	c, err := program.Start(ctx, request)
	if errors.Is(err, errs.Unavailable) { // a process of libcontainer would hang in the cgroup, too, and its parent with it
		return 0, err
	}
	if err != nil {
		return 0, &NotBegunError{err}
	}
	if request.User != nil {
		err = e.Process.PrepareOutside(c.Pid)
	}
	if err == nil {
		err = direct(ctx, c, e, spaces)
	}
	if err != nil {
		c.Kill()
		return 0, err
	}
	c.Conn.Close()
	c.Pidfd.Close()
	return c.Pid, nil
}

// late are the namespaces that the child joins itself. The kernel lets no process from a cgroup namespace
// start a child in a cgroup, from a cgroup outside of the namespace (nsdelegate).
const late = unix.CLONE_NEWCGROUP

// join returns the namespaces that the child is born into.
func join(e *Exec, kinds int) []fork.Namespace {
	if kinds == 0 {
		return nil // the kernel refuses to join none
	}
	return []fork.Namespace{{File: e.Init, Kind: kinds}}
}

// openSpaces opens the namespaces of the init that the child of a user namespace joins itself. Kind State
// when the init has ended.
func openSpaces(e *Exec) (spaces []*os.File, err error) {
	names := []string{"mnt"}
	if e.Namespaces&late != 0 {
		names = append(names, "cgroup")
	}
	for _, name := range names {
		f, openErr := os.Open(fmt.Sprintf("/proc/%d/ns/%s", e.Pid, name))
		if openErr != nil {
			err = fmt.Errorf("cannot open a namespace of the container: %w", openErr)
			break
		}
		spaces = append(spaces, f)
	}
	// The pid could have become another process's.
	ended, endErr := sysproc.PidfdEnded(e.Init)
	if ended {
		endErr = fmt.Errorf("its init has ended: %w", errs.State)
	}
	if endErr != nil {
		err = endErr
	}
	if err != nil {
		closeAll(spaces)
		return nil, err
	}
	return spaces, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// direct sends the order, and waits until the child executes the program. With spaces the child joins
// these, and no other namespace of the init.
func direct(ctx context.Context, c *fork.Child, e *Exec, spaces []*os.File) error {
	var files []*os.File
	number := func(f *os.File) int {
		if f == nil {
			return -1
		}
		files = append(files, f)
		return len(files) - 1
	}
	o := &order.Exec{
		Init:    number(e.Init),
		Join:    unix.CLONE_NEWNS | e.Namespaces&late,
		Proc:    number(e.Proc),
		Pidfd:   number(e.Pidfd),
		Console: number(e.Console),
		Width:   e.Width,
		Height:  e.Height,
		Process: e.Process,
	}
	if len(spaces) > 0 {
		o.Init, o.Join = -1, 0
	}
	for _, f := range spaces {
		o.Spaces = append(o.Spaces, number(f))
	}
	for _, f := range e.Tasks {
		o.Tasks = append(o.Tasks, number(f))
	}
	stop := context.AfterFunc(ctx, func() {
		_ = c.Conn.SetDeadline(time.Unix(1, 0)) // it fails on a closed socket only
	})
	defer stop()
	sendErr := c.Send(o.Encode(), files)
	answer, err := c.Receive(ctx)
	var failed *failure.Failure
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &failed):
		return failed.Err()
	case sendErr != nil:
		return sendErr
	case err == nil:
		return fmt.Errorf("the child of an exec has sent %q", answer)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("cannot hear of the child of an exec: %w", err)
	}
	return awaitExecuted(ctx, c)
}

// awaitExecuted is called when the child has closed its socket: it executes the program, or it has
// ended without that. The kernel closes the socket a moment before it changes the name.
func awaitExecuted(ctx context.Context, c *fork.Child) error {
	// A program may have the name, too.
	for end := time.Now().Add(time.Second); isChild(c.Pid); time.Sleep(50 * time.Microsecond) {
		ended, err := sysproc.PidfdEnded(c.Pidfd)
		switch {
		case err != nil:
			return err
		case ended && isChild(c.Pid):
			status, _, err := sysproc.PeekChild(c.Pidfd)
			if err != nil {
				return err
			}
			return fmt.Errorf("the child of an exec ended before it executed the program, with code %d (137 may mean that memory ran out)",
				sysproc.ExitCode(status))
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return nil
		}
	}
	return nil
}

// isChild reports whether a process has the name of a child that has not executed the program.
func isChild(pid int) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.TrimSpace(string(name)) == order.Name
}
