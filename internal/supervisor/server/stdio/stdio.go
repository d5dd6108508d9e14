// Package stdio has the supervisor's ends of a container's standard streams: pipes or a terminal.
package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Streams are this process's ends of a container's stdio. The zero value has none open. The keeper
// and the daemon hold duplicates of each: the content of a pipe is lost with its last descriptor,
// and the processes on a terminal end when the terminal's master is closed.
type Streams struct {
	mu sync.Mutex
	// stdin is a writing end, stdout and stderr are reading ends. pumped is true when the log
	// pump owns the reading ends. With a terminal, stdout is the pipe that the terminal's output
	// is copied to, and stderr and stdin are nil.
	stdin, stdout, stderr *os.File
	pumped                bool
	terminal              *os.File
	// toLog is the writing end of stdout, with a terminal.
	toLog *os.File
	// copied is closed when the copy of the terminal's output has ended; stopCopy ends it.
	copied   chan struct{}
	stopCopy context.CancelFunc
}

// terminalTimeout bounds the wait for the end of the output of a terminal whose other side a process
// outside of the container keeps open, while the log takes the output.
const terminalTimeout = 2 * time.Second

// Ends are the container's ends of its streams. They are closed when the container has them.
type Ends struct {
	ociruntime.StdIO
	// Receiver is the receiving end of the socket StdIO.Console, nil without a terminal.
	Receiver *os.File
}

// Close closes the ends.
func (e *Ends) Close() {
	for _, f := range []*os.File{e.Stdin, e.Stdout, e.Stderr, e.Console} {
		if f != nil {
			f.Close()
		}
	}
}

// Make makes the streams, and returns the container's ends of them. owner owns the pipes.
func (st *Streams) Make(terminal, stdin bool, owner sysfd.Owner) (_ *Ends, err error) {
	e := &Ends{}
	defer func() {
		if err != nil {
			e.Close()
			st.Close()
		}
	}()
	st.mu.Lock()
	defer st.mu.Unlock()
	if terminal {
		// The container does not get this pipe: the terminal's output passes through it on
		// its way to the log.
		if st.stdout, st.toLog, err = sysfd.InputPipe(sysfd.Owner{}); err != nil {
			return e, err
		}
		e.Receiver, e.Console, err = sysfd.FDSocket()
		return e, err
	}
	if stdin {
		if e.Stdin, st.stdin, err = sysfd.InputPipe(owner); err != nil {
			return e, err
		}
	}
	if st.stdout, e.Stdout, err = sysfd.OutputPipe(owner); err != nil {
		return e, err
	}
	st.stderr, e.Stderr, err = sysfd.OutputPipe(owner)
	return e, err
}

// IDs returns the ids of the pipes (see sysfd.PipeID), by stream.
func (st *Streams) IDs() (map[string]uint64, error) {
	ids := make(map[string]uint64)
	for name, f := range st.Named() {
		if name == supervisor.StreamTerminal {
			continue
		}
		id, err := sysfd.PipeID(f)
		if err != nil {
			return nil, err
		}
		ids[name] = id
	}
	return ids, nil
}

// Named returns the open files by stream (supervisor.StreamStdin, ...). The files stay st's.
func (st *Streams) Named() map[string]*os.File {
	st.mu.Lock()
	defer st.mu.Unlock()
	all := make(map[string]*os.File)
	for name, f := range map[string]*os.File{
		supervisor.StreamStdin:    st.stdin,
		supervisor.StreamStdout:   st.stdout,
		supervisor.StreamStderr:   st.stderr,
		supervisor.StreamTerminal: st.terminal,
	} {
		if f != nil {
			all[name] = f
		}
	}
	return all
}

// Set takes a stream that was found again. It closes f when that stream is open already.
func (st *Streams) Set(name string, f *os.File) {
	st.mu.Lock()
	defer st.mu.Unlock()
	place := map[string]**os.File{
		supervisor.StreamStdin:    &st.stdin,
		supervisor.StreamStdout:   &st.stdout,
		supervisor.StreamStderr:   &st.stderr,
		supervisor.StreamTerminal: &st.terminal,
	}[name]
	if place == nil || *place != nil {
		f.Close()
		return
	}
	*place = f
}

// Pipes returns the reading ends, for the log pump. See SetPumped.
func (st *Streams) Pipes() (stdout, stderr *os.File) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.stdout, st.stderr
}

// ReopenToLog opens the writing end of the pipe of an adopted terminal.
func (st *Streams) ReopenToLog() (err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stdout != nil && st.toLog == nil {
		st.toLog, err = sysfd.ReopenPipe(st.stdout, os.O_WRONLY)
	}
	return err
}

// CopyTerminal begins to copy the terminal's output into the pipe of the log, if there is a terminal.
// The copy goes on until ended is closed, also when no process has the terminal open for a while.
func (st *Streams) CopyTerminal(ended <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.terminal == nil || st.toLog == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	st.stopCopy, st.copied = stop, make(chan struct{})
	terminal, writer, copied := st.terminal, st.toLog, st.copied
	go func() {
		defer close(copied)
		copyOutput(ctx, terminal, writer, ended)
	}()
}

func copyOutput(ctx context.Context, terminal, writer *os.File, ended <-chan struct{}) {
	for {
		over := false
		select {
		case <-ended:
			over = true
		default:
		}
		pipe, err := sysfd.ReopenPipe(writer, os.O_WRONLY)
		if err == nil {
			err = sysfd.CopyTerminal(ctx, terminal, pipe)
		}
		// No process has it open. That is the end only when the container has ended.
		if over || err != nil || ctx.Err() != nil {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// FinishTerminal returns nil when the output of an ended container's terminal is in the pipe. While stalled reports that the log
// takes nothing, the pipe may be full: then FinishTerminal waits until ctx ends, and the copy goes on until Close. rest is closed
// when that has ended.
func (st *Streams) FinishTerminal(ctx context.Context, stalled func() bool) (rest <-chan struct{}) {
	st.mu.Lock()
	copied, stop := st.copied, st.stopCopy
	st.mu.Unlock()
	if copied == nil {
		st.closeToLog()
		return nil
	}
	if goesOn := awaitCopy(ctx, copied, stalled); goesOn {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			<-copied
			st.closeToLog()
		}()
		return ended
	}
	stop()
	<-copied
	st.closeToLog()
	return nil
}

// awaitCopy waits for the end of the copy. goesOn is true when the copy only waits for the log. Time during which the log takes
// nothing does not count for terminalTimeout.
func awaitCopy(ctx context.Context, copied <-chan struct{}, stalled func() bool) (goesOn bool) {
	const step = 50 * time.Millisecond
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for left := terminalTimeout; left > 0; {
		select {
		case <-copied:
			return false
		case <-ctx.Done():
			return stalled()
		case <-ticker.C:
			if !stalled() {
				left -= step
			}
		}
	}
	return false
}

func (st *Streams) closeToLog() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.toLog != nil {
		st.toLog.Close()
		st.toLog = nil
	}
}

// CloseStdin closes the writing end. The container sees the end of its input when the other holders
// have closed theirs, too.
func (st *Streams) CloseStdin() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stdin != nil {
		st.stdin.Close()
		st.stdin = nil
	}
}

// SetPumped gives the reading ends to the log pump, which closes them: it may be using them.
func (st *Streams) SetPumped() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.pumped = true
}

// Close closes the open streams, except those that the log pump owns.
func (st *Streams) Close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stopCopy != nil {
		st.stopCopy()
	}
	if st.pumped {
		st.stdout, st.stderr = nil, nil
	}
	for _, f := range []**os.File{&st.stdin, &st.stdout, &st.stderr, &st.terminal, &st.toLog} {
		if *f != nil {
			(*f).Close()
			*f = nil
		}
	}
}

// ReceiveTerminal waits for the terminal's master, which the init sends over the socket console. It
// stays in the socket, too. Kind State when the init has closed the socket.
func ReceiveTerminal(ctx context.Context, console *os.File) (*os.File, error) {
	fd, err := sysfd.PeekFD(ctx, console)
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("no terminal came from the init: %w", errs.State)
	}
	if err != nil {
		return nil, err
	}
	return sysfd.NewTerminal(fd)
}
