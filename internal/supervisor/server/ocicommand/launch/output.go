package launch

import (
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// OutputTimeout bounds the wait for the end of the output of a program that was killed, or has
	// left processes behind.
	OutputTimeout = time.Second
	// MaxOutput bounds what is kept of a program's output.
	MaxOutput = 64 << 10
)

// Output is what a program writes to a pipe: its end.
type Output struct {
	// Writer is the program's end of the pipe.
	Writer *os.File
	reader *os.File
	read   chan struct{}
	data   Bounded
}

// NewOutput returns an Output. End must be called.
func NewOutput() (*Output, error) {
	o := &Output{read: make(chan struct{})}
	var err error
	if o.reader, o.Writer, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	go func() {
		defer close(o.read)
		_, _ = io.Copy(&o.data, o.reader) // what came before an error is kept
	}()
	return o, nil
}

// End returns what the program has written. A process that the program has left may have the pipe open: End
// does not wait for it.
func (o *Output) End() []byte {
	o.Writer.Close()
	_ = o.reader.SetReadDeadline(time.Now().Add(OutputTimeout)) // a closed one has ended
	<-o.read
	o.reader.Close()
	return o.data.data
}

// Bounded is an output that keeps its end.
type Bounded struct{ data []byte }

func (b *Bounded) Write(p []byte) (int, error) {
	b.data = append(b.data, p...)
	if over := len(b.data) - MaxOutput; over > 0 {
		b.data = append(b.data[:0], b.data[over:]...)
	}
	return len(p), nil
}

// Bytes returns what is kept.
func (b *Bounded) Bytes() []byte { return b.data }
