package podinit

import (
	"os"
	"testing"
	"time"
)

// TestHoldEndsWithItsMaker: a daemon that is killed while it pins namespaces leaves no process.
func TestHoldEndsWithItsMaker(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	ended := make(chan struct{})
	go func() {
		awaitEnd(int(read.Fd()))
		close(ended)
	}()
	if _, err := write.WriteString("a byte does not end it"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
		t.Fatal("it ends while the pipe has a writer")
	case <-time.After(10 * time.Millisecond):
	}
	write.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end with the pipe")
	}
}
