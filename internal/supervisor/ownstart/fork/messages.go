package fork

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Send sends the child its order, with copies of files. The child may have ended: then Receive returns
// that.
func (c *Child) Send(encoded []byte, files []*os.File) error {
	head := binary.NativeEndian.AppendUint32(nil, uint32(len(encoded)))
	if err := sysfd.SendFiles(c.Conn, head, files); err != nil {
		return fmt.Errorf("cannot send a child its order: %w", err)
	}
	if _, err := c.Conn.Write(encoded); err != nil {
		return fmt.Errorf("cannot send a child its order: %w", err)
	}
	return nil
}

// maxAnswer bounds an answer: the text of an error.
const maxAnswer = 1 << 20

// Receive returns the child's next answer. It is io.EOF when the child has closed the socket: at its
// execve, or at its end. It is a *failure.Failure when the child has failed, and ctx.Err() when ctx ends
// first.
func (c *Child) Receive(ctx context.Context) (order.Answer, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // it fails on a closed socket only
	})
	defer stop()
	message, err := c.receive()
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		return 0, err
	case order.Answer(message[0]) == order.Failed:
		f, err := failure.Decode(message[1:])
		if err != nil {
			return 0, err
		}
		return 0, f
	}
	return order.Answer(message[0]), nil
}

// receive returns a message of at least one byte.
func (c *Child) receive() ([]byte, error) {
	head := make([]byte, 4)
	_, err := io.ReadFull(c.Conn, head)
	if errors.Is(err, syscall.ECONNRESET) {
		// The child has ended before it read all. The kernel reports that once, ahead of what the
		// child has sent.
		_, err = io.ReadFull(c.Conn, head)
	}
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("a child has ended within a message: %w", err)
		}
		return nil, err
	}
	length := binary.NativeEndian.Uint32(head)
	if length == 0 || length > maxAnswer {
		return nil, fmt.Errorf("a child has sent a message of %d bytes", length)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(c.Conn, message); err != nil {
		return nil, fmt.Errorf("a child has ended within a message: %w", err)
	}
	return message, nil
}

// Pauses between two tries to reap a child that a tracer holds.
const (
	reapFirst = time.Millisecond
	reapLast  = time.Second
)

// Kill ends a child that is of no use, and reaps it: as a zombie it would keep the init of its PID
// namespace from ending. While a process of the container traces it, only the tracer can reap it: Kill
// then goes on in the background. It closes Pidfd and Conn.
func (c *Child) Kill() {
	c.Conn.Close()
	// It may have ended by itself.
	_ = sysproc.SignalPidfd(c.Pidfd, syscall.SIGKILL)
	c.reap()
}

// reap waits for the end of a child that ends, and reaps it. It closes Pidfd.
func (c *Child) reap() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer c.Pidfd.Close()
		if sysproc.AwaitExit(context.Background(), c.Pidfd) != nil {
			return
		}
		for pause := reapFirst; ; pause = min(2*pause, reapLast) {
			if _, reaped, err := sysproc.ReapChild(c.Pidfd); reaped || err != nil {
				return
			}
			time.Sleep(pause)
		}
	}()
	select {
	case <-ended:
	case <-time.After(killTimeout):
	}
}

// killTimeout bounds the wait for a child that was killed.
const killTimeout = 5 * time.Second
