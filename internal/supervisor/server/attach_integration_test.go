//go:build integration

package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
)

// A client that writes right after the attach gets the container's answer.
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

// TestRefusedAttachLeavesTheInput: a container has as many clients as it may have. The next one is refused, and does not end
// the input of a StdinOnce container, which another client is using.
func TestRefusedAttachLeavesTheInput(t *testing.T) {
	h := newHost(t).serve()
	h.run("once", `while :; do echo tick; sleep 0.05; done & while read x; do echo "got $x"; [ $x = end ] && exit 5; done; exit 6`, withStdinOnce)
	in, words := io.Pipe()
	go h.client.Attach(h.ctx(), "once", supervisor.Streams{Stdin: in})
	fmt.Fprintln(words, "one")
	h.waitLine("once", "got one")
	const clients = 64 // as docs/running.md says
	joined := make(chan struct{}, clients)
	for range clients - 1 {
		ctx := h.ctx()
		heard, out := io.Pipe()
		go func() {
			h.client.Attach(ctx, "once", supervisor.Streams{Stdout: out})
			out.Close()
		}()
		go func() {
			for scanner, first := bufio.NewScanner(heard), true; scanner.Scan(); first = false {
				if first {
					joined <- struct{}{}
				}
			}
		}()
	}
	for range clients - 1 {
		<-joined
	}
	err := h.client.Attach(h.ctx(), "once", supervisor.Streams{Stdin: strings.NewReader("no"), Stdout: io.Discard})
	if !errors.Is(err, errs.Exhausted) {
		t.Errorf("one client too many: %v", err)
	}
	fmt.Fprintln(words, "end")
	h.wantExit("once", 5)
	words.Close()
}

// An attached client stays attached when the supervisor dies. The next supervisor reports the
// container's exit to it.
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
			for range lines { // words that were sent twice
			}
		}()
		fmt.Fprintln(words, "end")
		words.Close() // also ends the other client: StdinOnce
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		h.wantExit(name, code)
	}
}

// say sends a word until it is answered. When a supervisor dies, an answer may be in the log only.
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
