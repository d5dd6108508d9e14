package machine

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/provision"
)

// TestRunEndsWhatAProgramStarted: if the context of a program ends, its child processes are ended
// too, even those that ignore signals.
func TestRunEndsWhatAProgramStarted(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"listens", "sleep 1000 >&- 2>&- & echo > $FIFO; sleep 1000; true"},
		{"its child does not", "(trap '' TERM; exec >&- 2>&-; echo > $FIFO; while :; do sleep 1000; done) & wait"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fifo := t.TempDir() + "/fifo"
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			// Each process holds the writing end. The reader gets end of file when all have exited.
			script := "exec 9> $FIFO\n" + strings.ReplaceAll(c.script, "> $FIFO", ">&9")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := run(ctx, provision.Command{Args: []string{"sh", "-c", script}, Env: []string{"FIFO=" + fifo}})
				ended <- err
			}()
			from, err := os.Open(fifo)
			if err != nil {
				t.Fatal(err)
			}
			defer from.Close()
			reader := bufio.NewReader(from)
			if _, err := reader.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-ended; err == nil {
				t.Error("a program that was ended says that all is well")
			}
			if err := from.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := reader.ReadString('\n'); !errors.Is(err, io.EOF) {
				t.Errorf("a process that the program started still runs: %v", err)
			}
		})
	}
}
