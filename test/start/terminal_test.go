//go:build integration && e2e

package start

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness/terminal"
	"github.com/berthrun/berth/test/systemd"
)

// patience bounds one command: the longest one builds berth.
const patience = 10 * time.Minute

const ctrlC = "\x03"

// prompt is what the shell prints when it waits for a command: the exit status of the last one.
var prompt = regexp.MustCompile(`\[status:(\d+)\]\$ $`)

// shell is a terminal with a shell of root in a machine.
type shell struct {
	t      *testing.T
	master *os.File

	mu      sync.Mutex
	changed *sync.Cond
	said    strings.Builder
	ended   error
}

// open opens a terminal on a machine. It ends with the test.
func open(t *testing.T, m *systemd.Machine) *shell {
	t.Helper()
	master, program := terminal.Pair(t)
	// Lines of a dumb terminal do not wrap: the shell would show a part of them.
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 1000}); err != nil {
		t.Fatal(err)
	}
	s := &shell{t: t, master: master}
	s.changed = sync.NewCond(&s.mu)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := m.Terminal(ctx, "bash", "--login")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	program.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.follow()
	}()
	t.Cleanup(func() {
		cancel()
		var killed *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &killed) && !errors.Is(err, context.Canceled) {
			t.Errorf("the shell of the terminal: %v", err)
		}
		<-read
		master.Close()
	})
	s.types("PS1='[status:$?]$ '\n")
	s.await("the first prompt", prompt.MatchString)
	return s
}

// follow reads what the terminal shows.
func (s *shell) follow() {
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.said.WriteString(strings.ReplaceAll(string(buf[:n]), "\r", ""))
		s.ended = err
		s.changed.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// types forgets what the terminal shows, and sends keys.
func (s *shell) types(keys string) {
	s.t.Helper()
	s.mu.Lock()
	s.said.Reset()
	s.mu.Unlock()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// await waits until the terminal shows what is wanted since the last keys, and returns all of it.
func (s *shell) await(what string, wanted func(text string) bool) string {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	late := false
	timer := time.AfterFunc(require.Patience(patience), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.changed.Broadcast()
	})
	defer timer.Stop()
	for !wanted(s.said.String()) {
		if late || s.ended != nil {
			s.t.Fatalf("waited for %s (%v); the terminal shows:\n%s", what, s.ended, s.said.String())
		}
		s.changed.Wait()
	}
	return s.said.String()
}

// run types a command, answers its question with y, and returns what it prints and its exit status.
func (s *shell) run(text, asks string) (out, status string) {
	s.t.Helper()
	s.types(text + "\n")
	out = s.await("the end of "+text, func(shown string) bool {
		return prompt.MatchString(shown) || asks != "" && strings.HasSuffix(shown, asks)
	})
	if !prompt.MatchString(out) {
		s.types("y\n")
		out += s.await("the end of "+text, prompt.MatchString)
	}
	return out, prompt.FindStringSubmatch(out)[1]
}
