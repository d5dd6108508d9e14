package stream

import (
	"errors"
	"io"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestMemoryHasALimit: a client that reads nothing makes berth keep a bounded part of the output.
func TestMemoryHasALimit(t *testing.T) {
	b, chunk := newBuffer(0), make([]byte, 32<<10)
	fill := func() (n int, err error) {
		for err == nil && n < 2*heldAfterEnd {
			_, err = b.Write(chunk)
			n += len(chunk)
		}
		return n, err
	}
	refused := make(chan error, 1)
	go func() {
		_, err := fill()
		refused <- err
	}()
	b.programEnded()
	if err := <-refused; !errors.Is(err, errFull) || b.held > heldAfterEnd {
		t.Errorf("%d bytes are held, %v", b.held, err)
	}
	b.finish(io.EOF)
	if n, err := io.Copy(io.Discard, b); n != heldAfterEnd || err != nil {
		t.Errorf("%d bytes delivered of %d, %v", n, heldAfterEnd, err)
	}
	b.abandon()
	if _, err := b.Write(chunk); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a write that nobody reads: %v", err)
	}
}

// TestAReaderThatFallsBehindIsDropped: it holds up nobody. What was kept for it is there until it is abandoned.
func TestAReaderThatFallsBehindIsDropped(t *testing.T) {
	b, chunk := newBuffer(100), make([]byte, 60)
	for range 2 {
		if n, err := b.Write(chunk); n != len(chunk) || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := b.Write(chunk); !errors.Is(err, errBehind) || !errors.Is(err, errs.Exhausted) {
		t.Fatalf("a third chunk: %v", err)
	}
	b.finish(errBehind)
	read, err := io.ReadAll(b)
	if len(read) != 2*len(chunk) || !errors.Is(err, errBehind) {
		t.Errorf("%d bytes were delivered, then %v", len(read), err)
	}
}
