package screen

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Input reads the keys of a terminal until it is stopped. Then others can read the terminal.
type Input struct {
	file *os.File
	// Keys has each key that was pressed.
	Keys chan Key
	// Failed has the error that has ended the reading.
	Failed chan error
	// stopped and wake are the ends of a pipe: closing wake ends a reading that waits. stopping ends one that has a key
	// which nobody takes.
	stopped, wake *os.File
	stopping      chan struct{}
	ended         chan struct{}
}

// escapeWait is how many milliseconds the rest of an escape sequence may take.
const escapeWait = 50

// ReadKeys begins to read.
func ReadKeys(file *os.File) (*Input, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot read the terminal: %w", err)
	}
	in := &Input{
		file: file, Keys: make(chan Key), Failed: make(chan error, 1),
		stopped: r, wake: w, stopping: make(chan struct{}), ended: make(chan struct{}),
	}
	go func() {
		defer close(in.ended)
		if err := errs.Guard("reading of the terminal", in.run); err != nil {
			in.Failed <- fmt.Errorf("cannot read the terminal: %w", err)
		}
	}()
	return in, nil
}

// Stop ends the reading, and returns when nothing is read any more.
func (in *Input) Stop() {
	close(in.stopping)
	in.wake.Close()
	<-in.ended
	in.stopped.Close()
}

func (in *Input) run() error {
	var pending []byte
	buf := make([]byte, 256)
	for {
		ready, err := in.wait(len(pending) > 0)
		switch {
		case err != nil:
			return err
		case in.isStopping():
			return nil
		case !ready:
			in.send(endKeys(pending))
			pending = nil
			continue
		}
		n, err := in.file.Read(buf)
		if err != nil {
			return err
		}
		var keys []Key
		keys, pending = parseKeys(append(pending, buf[:n]...))
		in.send(keys)
	}
}

// wait waits until there is something to read, or the reading is stopped. With half an escape sequence it returns false
// after a moment.
func (in *Input) wait(half bool) (ready bool, err error) {
	timeout := -1
	if half {
		timeout = escapeWait
	}
	fds := []unix.PollFd{{Fd: int32(in.file.Fd()), Events: unix.POLLIN}, {Fd: int32(in.stopped.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, timeout)
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

func (in *Input) isStopping() bool {
	select {
	case <-in.stopping:
		return true
	default:
		return false
	}
}

func (in *Input) send(keys []Key) {
	for _, k := range keys {
		select {
		case in.Keys <- k:
		case <-in.stopping:
			return
		}
	}
}
