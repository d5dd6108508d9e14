package server

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

// streams are this process's ends of a container's stdio. The keeper and the
// daemon hold duplicates of each: the content of a pipe goes with its last
// opener, and what runs on a terminal dies with its master.
type streams struct {
	mu sync.Mutex
	// stdin is a writing end, stdout and stderr are reading ends; pumped says that
	// these are the log pump's. With a terminal stdout is the pipe that its output is moved
	// to, and stderr and stdin are nil.
	stdin, stdout, stderr *os.File
	pumped                bool
	terminal              *os.File
	// toLog is the writing end of stdout, with a terminal.
	toLog *os.File
	// moved is closed when the terminal's output has ended; stopMove ends it.
	moved    chan struct{}
	stopMove context.CancelFunc
}

// lastWords bounds the wait for a terminal whose other side somebody outside of
// the container keeps open.
const lastWords = 2 * time.Second

// child is what the container gets of its streams; it is closed after the start.
type child struct {
	ociruntime.StdIO
	// console is the receiving end of StdIO.Console.
	console *os.File
}

func (ch *child) close() {
	for _, f := range []*os.File{ch.Stdin, ch.Stdout, ch.Stderr, ch.Console} {
		if f != nil {
			f.Close()
		}
	}
}

// make makes the container's ends and ours.
func (st *streams) make(terminal, stdin bool, owner sysfd.Owner) (_ *child, err error) {
	ch := &child{}
	defer func() {
		if err != nil {
			ch.close()
			st.close()
		}
	}()
	st.mu.Lock()
	defer st.mu.Unlock()
	if terminal {
		// Not the container's pipe: the terminal's output passes through it on
		// its way to the log.
		if st.stdout, st.toLog, err = sysfd.InputPipe(sysfd.Owner{}); err != nil {
			return ch, err
		}
		ch.console, ch.Console, err = sysfd.FDSocket()
		return ch, err
	}
	if stdin {
		if ch.Stdin, st.stdin, err = sysfd.InputPipe(owner); err != nil {
			return ch, err
		}
	}
	if st.stdout, ch.Stdout, err = sysfd.OutputPipe(owner); err != nil {
		return ch, err
	}
	st.stderr, ch.Stderr, err = sysfd.OutputPipe(owner)
	return ch, err
}

// ids returns what the record says of the pipes.
func (st *streams) ids() (map[string]uint64, error) {
	ids := make(map[string]uint64)
	for name, f := range st.named() {
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

// named returns what is open, by name.
func (st *streams) named() map[string]*os.File {
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

// set puts a stream that was found again in its place, and closes it when there
// is one already.
func (st *streams) set(name string, f *os.File) {
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

// pipes returns the reading ends, for the log pump.
func (st *streams) pipes() (stdout, stderr *os.File) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.stdout, st.stderr
}

// reopenToLog opens the writing end of an adopted terminal's pipe.
func (st *streams) reopenToLog() (err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stdout != nil && st.toLog == nil {
		st.toLog, err = sysfd.ReopenPipe(st.stdout, os.O_WRONLY)
	}
	return err
}

// moveTerminal begins to move the terminal's output into the pipe of the log. It
// goes on while ended is open, also when nobody has the terminal open for a
// while.
func (st *streams) moveTerminal(ended <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.terminal == nil || st.toLog == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	st.stopMove, st.moved = stop, make(chan struct{})
	terminal, writer, moved := st.terminal, st.toLog, st.moved
	go func() {
		defer close(moved)
		keepMoving(ctx, terminal, writer, ended)
	}()
}

func keepMoving(ctx context.Context, terminal, writer *os.File, ended <-chan struct{}) {
	for {
		over := isClosed(ended)
		pipe, err := sysfd.ReopenPipe(writer, os.O_WRONLY)
		if err == nil {
			err = sysfd.CopyTerminal(ctx, terminal, pipe)
		}
		// Nobody has it open: that is the end only once the container has ended.
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

// finishTerminal returns when the output of an ended container's terminal is in
// the pipe.
func (st *streams) finishTerminal() {
	st.mu.Lock()
	moved, stop := st.moved, st.stopMove
	st.mu.Unlock()
	if moved != nil {
		select {
		case <-moved:
		case <-time.After(lastWords):
		}
		stop()
		<-moved
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.toLog != nil {
		st.toLog.Close()
		st.toLog = nil
	}
}

// closeStdin closes the writing end, so that the container sees the end of its
// input once the other holders have closed theirs.
func (st *streams) closeStdin() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stdin != nil {
		st.stdin.Close()
		st.stdin = nil
	}
}

// given says that the reading ends are the log pump's now, to be closed by it and
// nobody else: it may be in the middle of using them.
func (st *streams) given() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.pumped = true
}

// close closes what is open and ours.
func (st *streams) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.stopMove != nil {
		st.stopMove()
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

// receiveTerminal waits for the master that the init sends, and leaves it in the
// socket too.
func receiveTerminal(ctx context.Context, console *os.File) (*os.File, error) {
	fd, err := sysfd.PeekFD(ctx, console)
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("no terminal came from the init: %w", errs.State)
	}
	if err != nil {
		return nil, err
	}
	return sysfd.NewTerminal(fd)
}
