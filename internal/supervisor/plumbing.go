package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// plumbing copies between a caller's readers and writers and the descriptors of one exec or
// attachment.
type plumbing struct {
	ctx  context.Context //nolint:containedctx // the life of the copying goroutines
	stop context.CancelCauseFunc

	// names and theirs go to the supervisor.
	names  []string
	theirs []*os.File

	outputs sync.WaitGroup

	mu      sync.Mutex
	closers []io.Closer
	// sources are what outputs read from.
	sources []*os.File
	ending  bool
	err     error
}

func newPlumbing(ctx context.Context) *plumbing {
	p := &plumbing{}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	return p
}

func (p *plumbing) send(name string, f *os.File) {
	p.names, p.theirs = append(p.names, name), append(p.theirs, f)
}

func (p *plumbing) closeTheirs() {
	for _, f := range p.theirs {
		f.Close()
	}
	p.theirs = nil
}

// keep closes something together with the rest.
func (p *plumbing) keep(c io.Closer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closers = append(p.closers, c)
}

// close frees all. A read of the caller's input may still be under way.
func (p *plumbing) close() {
	p.stop(nil)
	p.closeTheirs()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.closers {
		f.Close()
	}
}

// fail ends it with the first error.
func (p *plumbing) fail(err error) {
	p.mu.Lock()
	if p.err == nil {
		p.err = err
	}
	p.mu.Unlock()
	p.stop(err)
}

func (p *plumbing) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// pipes makes the pipes of an exec, which become the streams of the process.
func (p *plumbing) pipes(streams Streams) error {
	if streams.Stdin != nil {
		theirs, ours, err := sysfd.InputPipe(sysfd.Owner{})
		if err != nil {
			return err
		}
		p.send(StreamStdin, theirs)
		if ours, err = sysfd.Pollable(ours); err != nil {
			return err
		}
		p.keep(ours)
		go func() {
			p.input(ours, streams.Stdin, nil)
			ours.Close()
		}()
	}
	return p.readers(streams)
}

// readers makes the pipes for output.
func (p *plumbing) readers(streams Streams) error {
	for _, s := range []struct {
		name string
		to   io.Writer
	}{{StreamStdout, streams.Stdout}, {StreamStderr, streams.Stderr}} {
		if s.to == nil {
			continue
		}
		ours, theirs, err := sysfd.InputPipe(sysfd.Owner{})
		if err != nil {
			return err
		}
		p.send(s.name, theirs)
		if ours, err = sysfd.Pollable(ours); err != nil {
			return err
		}
		p.keep(ours)
		p.outputs.Go(func() { p.output(ours, s.to) })
	}
	return nil
}

// joinTimeout is for a supervisor of an older version, which does not report that it has joined
// the output. After it, input is sent all the same.
const joinTimeout = 2 * time.Second

// joining is the pipe through which the supervisor reports that the output is joined. Nothing is read from it: the
// byte stays.
type joining struct {
	ctx  context.Context //nolint:containedctx // the life of the client's attachment
	pipe *os.File
}

// joining makes the pipe, for a client with input; nil without input.
func (p *plumbing) joining(streams Streams) (*joining, error) {
	if streams.Stdin == nil {
		return nil, nil
	}
	ours, theirs, err := sysfd.InputPipe(sysfd.Owner{})
	if err != nil {
		return nil, err
	}
	p.send(FileJoined, theirs)
	if ours, err = sysfd.Pollable(ours); err != nil {
		return nil, err
	}
	p.keep(ours)
	return &joining{p.ctx, ours}, nil
}

// wait returns when the output is joined. Input must not be sent first: the container's answer
// would be written before the client reads. It returns false when the attachment has ended
// instead.
func (j *joining) wait() bool {
	ctx, stop := context.WithTimeout(j.ctx, joinTimeout)
	defer stop()
	joined, err := sysfd.AwaitReadable(ctx, j.pipe, nil)
	return joined || errors.Is(err, context.DeadlineExceeded) && j.ctx.Err() == nil
}

// done reports whether the output was joined so far, as far as is known: a client without input gets no report.
func (j *joining) done() bool {
	if j == nil {
		return true
	}
	joined, err := sysfd.HasInput(j.pipe)
	return err == nil && joined
}

// input copies until from ends, and then calls end, or until the other side is closed.
func (p *plumbing) input(to io.Writer, from io.Reader, end func()) {
	_, err := io.Copy(to, from)
	switch {
	case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EIO), errors.Is(err, os.ErrClosed), p.ctx.Err() != nil:
		return
	case err != nil:
		p.fail(fmt.Errorf("cannot copy input: %w", err))
	case end != nil:
		end()
	}
}

// output copies until the writers are gone, or finish has found the source empty.
func (p *plumbing) output(from *os.File, to io.Writer) {
	p.mu.Lock()
	p.sources = append(p.sources, from)
	if p.ending {
		p.expire(from)
	}
	p.mu.Unlock()
	if to == nil {
		to = io.Discard
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.rest(from, to, buf)
			return
		}
		if n > 0 && !p.deliver(to, buf[:n]) {
			return
		}
		if err != nil {
			return // the end: io.EOF of a pipe, EIO of a terminal
		}
	}
}

// maxPending is more than a pipe or a terminal holds.
const maxPending = 1 << 20

// rest copies the data in the source without waiting for more. The process has written at most
// maxPending; another process may write without end.
func (p *plumbing) rest(from *os.File, to io.Writer, buf []byte) {
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	for left := maxPending; left > 0; {
		n := 0
		err := raw.Control(func(fd uintptr) {
			for {
				var readErr error
				if n, readErr = syscall.Read(int(fd), buf); readErr != syscall.EINTR {
					return
				}
			}
		})
		if err != nil || n <= 0 || !p.deliver(to, buf[:n]) {
			return
		}
		left -= n
	}
}

func (p *plumbing) deliver(to io.Writer, data []byte) bool {
	if _, err := to.Write(data); err != nil {
		p.fail(fmt.Errorf("cannot deliver output: %w", err))
		return false
	}
	return true
}

// finish delivers what the process has written before its end. It does not wait for other
// processes, which may still have its output open.
func (p *plumbing) finish(ctx context.Context) error {
	p.mu.Lock()
	p.ending = true
	for _, f := range p.sources {
		p.expire(f)
	}
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		p.outputs.Wait()
		close(done)
	}()
	select {
	case <-done:
		return p.failure()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// expire makes a waiting read return.
func (p *plumbing) expire(f *os.File) {
	if err := f.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return // it is closed
	}
}
