// Package terminal runs a program on a pseudo-terminal, and keeps what a terminal would show of its output. It knows
// the escape sequences that `berth top` writes; another one fails the test.
package terminal

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// Terminal is a pseudo-terminal with a program on it.
type Terminal struct {
	t      testing.TB
	master *os.File
	// Program is the program's side.
	Program *os.File

	mu      sync.Mutex
	changed *sync.Cond
	screen  *Screen
	ended   bool
}

// Open makes a terminal. It ends with the test.
func Open(t testing.TB, width, height int) *Terminal {
	t.Helper()
	master, program := Pair(t, width, height)
	term := &Terminal{t: t, master: master, Program: program, screen: NewScreen(width, height)}
	term.changed = sync.NewCond(&term.mu)
	read := make(chan struct{})
	go func() {
		defer close(read)
		term.follow()
	}()
	t.Cleanup(func() {
		program.Close()
		<-read // the kernel ends the reading when the program's side has no user
		master.Close()
		if term.screen.Fault != "" {
			t.Errorf("the terminal got %s", term.screen.Fault)
		}
	})
	return term
}

// Pair makes a pseudo-terminal that nothing reads: the side of a person, and that of a program.
func Pair(t testing.TB, width, height int) (master, program *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	var number int
	control(t, master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	setSize(t, master, width, height)
	program, err = os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(number)), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	return master, program
}

// control calls do with the descriptor of a file. File.Fd would make Close wait for a Read.
func control(t testing.TB, file *os.File, do func(fd int) error) {
	t.Helper()
	raw, err := file.SyscallConn()
	must(t, err)
	var failed error
	must(t, raw.Control(func(fd uintptr) { failed = do(int(fd)) }))
	must(t, failed)
}

func setSize(t testing.TB, master *os.File, width, height int) {
	t.Helper()
	control(t, master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)})
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// follow reads what the program writes.
func (x *Terminal) follow() {
	buf := make([]byte, 4096)
	for {
		n, err := x.master.Read(buf)
		x.mu.Lock()
		x.screen.Write(buf[:n])
		x.ended = err != nil
		x.changed.Broadcast()
		x.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Start starts a program with the terminal as its controlling terminal.
func (x *Terminal) Start(cmd *exec.Cmd) {
	x.t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = x.Program, x.Program, x.Program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(x.t, cmd.Start())
	x.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
}

// Type sends keys to the program.
func (x *Terminal) Type(keys string) {
	x.t.Helper()
	_, err := x.master.WriteString(keys)
	must(x.t, err)
}

// Resize changes the size; the kernel signals the program.
func (x *Terminal) Resize(width, height int) {
	x.t.Helper()
	x.mu.Lock()
	x.screen.resize(width, height)
	x.mu.Unlock()
	setSize(x.t, x.master, width, height)
}

// Modes are the modes of the terminal: echo, lines, signals.
func (x *Terminal) Modes() unix.Termios {
	x.t.Helper()
	modes, err := unix.IoctlGetTermios(int(x.Program.Fd()), unix.TCGETS)
	must(x.t, err)
	return *modes
}

// Shown is the screen now, a copy.
func (x *Terminal) Shown() Screen {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.screen.clone()
}

// Await waits until the screen is as wanted, and fails the test after a minute.
func (x *Terminal) Await(what string, wanted func(s Screen) bool) Screen {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	late := false
	timer := time.AfterFunc(require.Patience(time.Minute), func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		late = true
		x.changed.Broadcast()
	})
	defer timer.Stop()
	for {
		shown := x.screen.clone()
		if wanted(shown) {
			return shown
		}
		if late || x.ended {
			x.t.Fatalf("waited for %s; the terminal shows:\n%s", what, shown.String())
		}
		x.changed.Wait()
	}
}
