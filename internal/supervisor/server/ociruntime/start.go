package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Starting is a container whose init waits to execute the user's program.
type Starting struct {
	ID string
	// Pidfd is the init's; nil, for FinishStart, when it was reaped.
	Pidfd *os.File
	// Ended is closed when the init has ended.
	Ended <-chan struct{}
	// Hooked is true when the init runs hooks before it executes the program.
	Hooked bool
	// Hold gives a descriptor to processes that outlive this one, until Start has returned.
	Hold func(fifo *os.File) error
}

// Watched is a process whose end its runtime awaits.
type Watched struct {
	ContainerID string
	// ExecID is that of an exec, "" for the container's init.
	ExecID string
	// Pidfd is the process's, nil when it is not known.
	Pidfd *os.File
}

// Signalled is a signal to a process, or to processes.
type Signalled struct {
	ContainerID string
	// ExecID is that of an exec, "" for the container's init.
	ExecID string
	// Pidfd is that of the container's init, nil when it is not known.
	Pidfd  *os.File
	Signal syscall.Signal
	// All is for all processes of the container, or for all that the exec has started.
	All bool
}

// Ended is how a Watched has ended, as far as its runtime knows.
type Ended struct {
	// Known is true when Code is its exit code. Otherwise the kernel may have it.
	Known bool
	// Code is 128+n when signal n ended it.
	Code int32
	// At is the zero value when the runtime does not know the time.
	At time.Time
	// Message says what has ended it, for people; "" for an ordinary end.
	Message string
	// Shared is true when its process is also that of another container, to which the status that the kernel has
	// of it belongs.
	Shared bool
}

// Start lets the init execute the user's program. Nil when that was done before;
// errs.State when the init has ended without it. Errors of starts say only why: the
// daemon adds that the container cannot be started.
//
// libcontainer's own Exec leaks a goroutine and a thread for each init that died before
// it: it opens the FIFO in its own thread and waits. Start opens the FIFO without
// waiting. The init, which waits for a reader, continues, writes one byte and executes
// the program.
//
// If this process died between the open and that write, the init would die of SIGPIPE. So
// Start stops the init until Hold has the reading end. The byte stays in the FIFO: it shows
// a successor that the init continued.
func (r *Runtime) Start(ctx context.Context, s *Starting) error {
	if err := sysproc.SignalPidfd(s.Pidfd, syscall.SIGSTOP); err != nil {
		return notStarted(err)
	}
	fifo, err := os.OpenFile(r.fifo(s.ID), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		defer fifo.Close()
		err = s.Hold(fifo)
	}
	if contErr := sysproc.SignalPidfd(s.Pidfd, syscall.SIGCONT); contErr != nil {
		return notStarted(contErr)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.FinishStart(ctx, s, fifo)
}

// FinishStart completes a Start that another process has begun: fifo is what it gave to Hold.
func (r *Runtime) FinishStart(ctx context.Context, s *Starting, fifo *os.File) error {
	if s.Pidfd != nil { // the other process may have died before it sent SIGCONT
		if err := sysproc.SignalPidfd(s.Pidfd, syscall.SIGCONT); err != nil && !errors.Is(err, errs.NotFound) {
			return notStarted(err)
		}
	}
	written, err := sysfd.AwaitReadable(ctx, fifo, s.Ended)
	if err != nil {
		return errors.Join(err, cause(ctx))
	}
	if !written {
		return notStarted(errs.NotFound)
	}
	if err := awaitExecuted(ctx, s); err != nil {
		return err
	}
	return errs.IgnoreNotExist(os.Remove(r.fifo(s.ID)))
}

// notStarted is the error of a start whose init took no signal.
func notStarted(err error) error {
	if errors.Is(err, errs.NotFound) {
		return fmt.Errorf("its init has ended: %w", errs.State)
	}
	return err
}

// StartAgain completes a Start that another process has begun, when the descriptor that it gave to
// Hold is lost. Then the init still waits, or has executed the program, which may have ended since,
// or has died of SIGPIPE. Kind State when the init has ended and certainly did not execute the
// program; nil otherwise.
func (r *Runtime) StartAgain(ctx context.Context, s *Starting) error {
	pid, err := sysproc.PidfdPid(s.Pidfd)
	if err == nil && isInit(pid) {
		// A waiting init answers at once.
		short, stop := context.WithTimeout(ctx, 2*time.Second)
		err = r.Start(short, s)
		stop()
		executed := errors.Is(err, errs.Deadline) && ctx.Err() == nil || errors.Is(err, errs.State) && !NeverExecuted(pid)
		if !executed {
			return err
		}
	}
	return errs.IgnoreNotExist(os.Remove(r.fifo(s.ID)))
}

// dyingTimeout bounds Dying.
const dyingTimeout = time.Second

// Dying reports whether an init has ended, or does so in a moment. A runtime does not start an init whose first
// thread has ended, and the others end a little later.
func Dying(init *os.File) bool {
	for deadline := time.Now().Add(dyingTimeout); ; time.Sleep(time.Millisecond) { // another waits for the pidfd
		ended, err := sysproc.PidfdEnded(init)
		if err != nil || ended || time.Now().After(deadline) {
			return err == nil && ended
		}
	}
}

// Executable identifies the file that a process executes.
type Executable struct{ device, inode uint64 }

// ExecutableOf returns the file that a process executes, the zero value when it has ended.
func ExecutableOf(pid int) Executable {
	info, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return Executable{}
	}
	st := info.Sys().(*syscall.Stat_t)
	return Executable{st.Dev, st.Ino}
}

// replaceTimeout bounds AwaitReplaced.
const replaceTimeout = 200 * time.Millisecond

// AwaitReplaced returns true when the init executes another file than before, or has ended: what started it
// does not wait for that, and a signal before it may be lost. It returns false when that takes too long: the
// host is slow, or nothing has started the init.
func AwaitReplaced(ctx context.Context, s *Starting, pid int, before Executable) bool {
	ctx, stop := context.WithTimeout(ctx, replaceTimeout)
	defer stop()
	for ExecutableOf(pid) == before {
		select {
		case <-ctx.Done():
			return false
		case <-s.Ended:
			return true
		case <-time.After(50 * time.Microsecond):
		}
	}
	return true
}
