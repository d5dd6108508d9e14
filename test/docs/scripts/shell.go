package scripts

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness/terminal"
)

// Reader is the program of a shell. It reads commands from descriptor 3, so that its standard input
// is a terminal, as that of a person is. A mark follows the output of each command. Ctrl-C ends
// the command alone.
const Reader = `trap : INT
while IFS= read -r -d '' -u 3 line; do eval "$line" 3<&-; printf '\001%d\001' $?; done`

// Question is the end of what a command asks before it changes something. The shell answers with
// yes.
var Question = regexp.MustCompile(`\[y/N\]:? `)

// Shell is a bash on a terminal.
type Shell struct {
	t        testing.TB
	master   *os.File
	commands *os.File
	// patience is how long one command may take.
	patience time.Duration

	mu      sync.Mutex
	changed *sync.Cond
	output  string
	// answered is the length of the output when the last question was answered.
	answered int
	ended    bool
}

// Open starts a shell, which ends with the test. cmd runs bash with Reader; its descriptor 3 is the
// first of ExtraFiles. patience is how long one command may take.
func Open(t testing.TB, cmd *exec.Cmd, patience time.Duration) *Shell {
	t.Helper()
	master, program := terminal.Pair(t, 200, 50)
	commands, feed, err := os.Pipe()
	must(t, err)
	s := &Shell{t: t, master: master, commands: feed, patience: require.Patience(patience)}
	s.changed = sync.NewCond(&s.mu)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.ExtraFiles = []*os.File{commands}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, cmd.Start())
	program.Close()
	commands.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.follow()
	}()
	t.Cleanup(func() {
		feed.Close()
		killed := time.AfterFunc(require.Patience(10*time.Second), func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // a command that a failed test has left has the exit status of a signal
		killed.Stop()
		master.Close()
		<-read
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// control are the sequences that a program writes to move the cursor.
var control = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]|\r")

// follow reads what the commands write, and answers questions.
func (s *Shell) follow() {
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.output += control.ReplaceAllString(string(buf[:n]), "")
		asked := err == nil && Question.MatchString(s.output[s.answered:])
		if asked {
			s.answered = len(s.output)
		}
		s.ended = err != nil
		s.changed.Broadcast()
		s.mu.Unlock()
		if asked {
			_, err = s.master.WriteString("y\n")
		}
		if err != nil {
			return
		}
	}
}

// begin passes a command to the shell, and returns the length of the output before it.
func (s *Shell) begin(command string) (at int) {
	s.t.Helper()
	s.mu.Lock()
	at = len(s.output)
	s.mu.Unlock()
	_, err := s.commands.WriteString(command + "\x00")
	must(s.t, err)
	return at
}

// typed sends keys.
func (s *Shell) typed(keys string) {
	s.t.Helper()
	_, err := s.master.WriteString(keys)
	must(s.t, err)
}

// mark follows the output of a command: its exit status.
var mark = regexp.MustCompile("\x01([0-9]+)\x01")

// await waits for the end of a command that was begun when the output had the length at.
func (s *Shell) await(at int) (output string, status int) {
	s.t.Helper()
	s.until("waiting for the command's end", func(all string) bool {
		found := mark.FindStringSubmatchIndex(all[at:])
		if found == nil {
			return false
		}
		output = all[at : at+found[0]]
		status, _ = strconv.Atoi(all[at+found[2] : at+found[3]]) // the pattern has digits alone
		return true
	})
	return output, status
}

// Try runs a command that no page has.
func (s *Shell) Try(command string) (output string, status int) {
	s.t.Helper()
	return s.await(s.begin(command))
}

// Run is Try that requires success.
func (s *Shell) Run(command string) string {
	s.t.Helper()
	output, status := s.Try(command)
	if status != 0 {
		s.t.Fatalf("%s: exit status %d\n%s", command, status, output)
	}
	return output
}

// until waits until the output is as wanted.
func (s *Shell) until(what string, wanted func(output string) bool) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	late := false
	timer := time.AfterFunc(s.patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.changed.Broadcast()
	})
	defer timer.Stop()
	for !wanted(s.output) {
		if late || s.ended {
			s.t.Fatalf("%s; the terminal shows:\n%s", what, s.output)
		}
		s.changed.Wait()
	}
}
