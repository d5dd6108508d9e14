//go:build integration

package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/supervisor"
)

// What a container answers to a client's first words reaches that client, however
// soon the words come.
func TestAttachGetsOutputFromItsFirstInput(t *testing.T) {
	h := newHost(t).serve()
	h.run("echo", `echo ready; while read x; do echo "got $x"; done`, withStdin)
	h.waitLine("echo", "ready")
	for i := range 30 {
		ctx, stop := context.WithCancel(h.ctx())
		in, words := io.Pipe()
		heard, out := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- h.client.Attach(ctx, "echo", supervisor.Streams{Stdin: in, Stdout: out}) }()
		go fmt.Fprintf(words, "%d\n", i)
		want := fmt.Sprintf("got %d\n", i)
		got := make([]byte, len(want))
		silence := time.AfterFunc(20*time.Second, func() { heard.CloseWithError(context.DeadlineExceeded) })
		if _, err := io.ReadFull(heard, got); err != nil || string(got) != want {
			t.Fatalf("round %d: heard %q, %v", i, got, err)
		}
		silence.Stop()
		stop()
		words.Close()
		<-done
	}
}

// Who is attached stays so when the supervisor dies, and is told of the container's
// end by the next one.
func TestAttachSurvivesTheSupervisor(t *testing.T) {
	h := newHost(t).keep()
	h.run("plain", `echo ready; while read x; do echo "got $x"; done; exit 5`, withStdinOnce)
	h.run("tty", `echo ready; while read x && [ $x != end ]; do echo "got $x"; done; exit 6`, withTTY)
	for name, code := range map[string]int32{"plain": 5, "tty": 6} {
		h.waitLine(name, "ready")
		in, words := io.Pipe()
		heard, out := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- h.client.Attach(h.ctx(), name, supervisor.Streams{Stdin: in, Stdout: out})
			out.Close()
		}()
		lines := make(chan string)
		go func() {
			defer close(lines)
			for scanner := bufio.NewScanner(heard); scanner.Scan(); {
				lines <- strings.TrimSpace(scanner.Text())
			}
		}()
		say(t, words, lines, "one")
		for i := range 3 {
			h.crash()
			say(t, words, lines, fmt.Sprintf("after-%d", i))
		}
		go func() {
			for range lines { // what was said twice
			}
		}()
		fmt.Fprintln(words, "end")
		words.Close() // which ends the other one: its input is open once
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		h.wantExit(name, code)
	}
}

// say says a word until it is answered: in the moment of a death an answer may go to
// the log alone.
func say(t *testing.T, to io.Writer, lines <-chan string, word string) {
	t.Helper()
	for range 30 {
		if _, err := fmt.Fprintln(to, word); err != nil {
			t.Fatal(err)
		}
		again := time.After(2 * time.Second)
	listening:
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatalf("the attachment ended before %q was answered", word)
				}
				if line == "got "+word {
					return
				}
			case <-again:
				break listening
			}
		}
	}
	t.Fatalf("no answer to %q", word)
}
