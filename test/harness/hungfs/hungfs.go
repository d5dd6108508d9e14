// Package hungfs is a file system that can hang, like one whose server is dead: calls to it then
// block, and no signal interrupts them.
//
// A separate process serves it, and every wait for that process has a timeout. A file system
// exists after its unmount while it is mounted in another mount namespace: that of a container
// which a failed test has left, or of a process that copied the host's mounts. go-fuse's server
// waits for the end of its file system when it unmounts. In that case it would wait forever, and
// with it the test if both were one process. The separate process just exits. That closes its
// descriptor of /dev/fuse, the only one, so the kernel ends the connection and every blocked call
// returns an error.
package hungfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"golang.org/x/sys/unix"
)

// answerTimeout is how long the process may take to answer a command.
const answerTimeout = 10 * time.Second

// FS is one such file system.
type FS struct {
	t             testing.TB
	at            string
	answerTimeout time.Duration

	cmd     *exec.Cmd
	words   io.WriteCloser // its standard input: when this is closed it ends
	answers *os.File       // its standard output
	lines   *bufio.Reader  // of answers
	noise   bytes.Buffer   // its standard error, once it has ended
	ended   chan struct{}
	result  error // of cmd, once it has ended
}

// Mount shows the directory at dir at another place until the test ends.
func Mount(t testing.TB, dir, at string) *FS {
	t.Helper()
	require.Root(t)
	require.FUSE(t)
	f := &FS{t: t, at: at, answerTimeout: require.Patience(answerTimeout), ended: make(chan struct{})}
	if err := f.start(dir); err != nil {
		t.Fatalf("start the process of a file system: %v", err)
	}
	t.Cleanup(f.end)
	if err := f.receive(); err != nil {
		t.Fatalf("mount a FUSE file system at %s: %v", at, err)
	}
	return f
}

func (f *FS) start(dir string) error {
	f.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{serverName, dir, f.at}, Stderr: &f.noise,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // signals from a terminal are for the test
	}
	var err error
	if f.words, err = f.cmd.StdinPipe(); err != nil {
		return err
	}
	// Not StdoutPipe: its end is closed when the process ends, even if the last output has not been
	// read.
	answers, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdout.Close()
	f.cmd.Stdout, f.answers, f.lines = stdout, answers, bufio.NewReader(answers)
	if err := f.cmd.Start(); err != nil {
		return errors.Join(err, answers.Close())
	}
	go func() {
		f.result = f.cmd.Wait()
		close(f.ended)
	}()
	return nil
}

// Hang makes every request wait from now on, until Answer.
func (f *FS) Hang() {
	f.t.Helper()
	if err := f.send(wordHang); err != nil {
		f.t.Fatalf("let the file system at %s hang: %v", f.at, err)
	}
}

// HangOpens makes every open of a file wait from now on, until Answer. Other requests are answered.
func (f *FS) HangOpens() {
	f.t.Helper()
	if err := f.send(wordHangOpens); err != nil {
		f.t.Fatalf("let opens in the file system at %s hang: %v", f.at, err)
	}
}

// Answer lets the waiting requests continue.
func (f *FS) Answer() {
	f.t.Helper()
	if err := f.send(wordAnswer); err != nil {
		f.t.Fatalf("let the file system at %s answer: %v", f.at, err)
	}
}

func (f *FS) send(word string) error {
	if _, err := fmt.Fprintln(f.words, word); err != nil {
		return err
	}
	return f.receive()
}

// receive waits for the process's next answer.
func (f *FS) receive() error {
	if err := f.answers.SetReadDeadline(time.Now().Add(f.answerTimeout)); err != nil {
		return err
	}
	line, err := f.lines.ReadString('\n')
	if err != nil {
		return fmt.Errorf("its process says nothing: %w", err)
	}
	if line = strings.TrimSpace(line); line != done {
		return errors.New(line)
	}
	return nil
}

// end unmounts. A process that does not end prints where it waits, and is killed.
func (f *FS) end() {
	f.t.Helper()
	defer f.answers.Close()
	if err := f.send(wordEnd); err != nil {
		f.t.Errorf("unmount %s: %v", f.at, err)
	}
	f.words.Close()
	for _, signal := range []os.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		if !f.hasEnded() {
			_ = f.cmd.Process.Signal(signal)
		}
	}
	if !f.hasEnded() {
		f.t.Errorf("process %d, which serves %s, is still there after SIGKILL", f.cmd.Process.Pid, f.at)
		return
	}
	if f.result != nil {
		f.t.Errorf("the process that serves %s: %v\n%s", f.at, f.result, f.noise.Bytes())
		_ = unix.Unmount(f.at, unix.MNT_DETACH)
	}
	if all := holders(f.at); len(all) > 0 {
		f.t.Logf("the file system of %s has ended but is still mounted, in the mount namespaces of %s", f.at, strings.Join(all, ", "))
	}
}

// hasEnded waits for the process's end.
func (f *FS) hasEnded() bool {
	select {
	case <-f.ended:
		return true
	case <-time.After(f.answerTimeout):
		return false
	}
}

// sourceOf is the name of the file system in tables of mounts, everywhere.
func sourceOf(at string) string { return "hungfs:" + at }

// holders are processes in whose mount namespace the file system is, one of each.
func holders(at string) []string {
	var all []string
	known := map[string]bool{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		// What cannot be read here is of a process that has ended.
		namespace, err := os.Readlink(filepath.Join(process, "ns/mnt"))
		if err != nil || known[namespace] {
			continue
		}
		mounts, err := os.ReadFile(filepath.Join(process, "mountinfo"))
		known[namespace] = err == nil
		if bytes.Contains(mounts, []byte(" "+sourceOf(at)+" ")) {
			// Not its command line: the kernel may wait for a hung process to read that.
			name, _ := os.ReadFile(filepath.Join(process, "comm"))
			all = append(all, fmt.Sprintf("%s (%s)", filepath.Base(process), bytes.TrimSpace(name)))
		}
	}
	return all
}
