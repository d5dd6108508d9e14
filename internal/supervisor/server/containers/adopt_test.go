package containers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/adopted"
	"github.com/berthrun/berth/internal/supervisor/server/heldfiles"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// noClients are the clients of a supervisor that has none.
type noClients struct{}

func (noClients) Hold(string, string, *os.File) {}

func (noClients) Drop(string, ...string) {}

func (noClients) Exited(supervisor.Exit) {}

// adoptingSet returns a Set that watches processes, and runs no container.
func adoptingSet(t *testing.T) *Set {
	t.Helper()
	log, dir := slog.New(slog.DiscardHandler), t.TempDir()
	s := &Set{
		opts: Options{StateDir: dir, Clients: noClients{}}, log: log, stopping: t.Context(), offered: make(chan struct{}),
		held: heldfiles.New(nil, log), adopted: adopted.New(dir, log), reserve: sysfile.KeepReserve(filepath.Join(dir, reserveName)),
	}
	var err error
	if s.oom, err = cgroup.NewOOMWatch(); err != nil {
		t.Fatal(err)
	}
	if s.ends, err = sysproc.NewExitWatch(); err != nil {
		t.Fatal(err)
	}
	go s.ends.Run(t.Context())
	return s
}

// waiting starts a process that ends with a code when its input ends.
func waiting(t *testing.T, code int) (process *record.Process, input io.Closer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf("echo; read x; exit %d", code))
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the watch may have reaped it
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	pidfd, err := sysproc.OpenPidfd(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	if process, err = identify(cmd.Process.Pid, pidfd); err != nil {
		t.Fatal(err)
	}
	return process, input
}

// withoutDescriptors calls fn while this process can open no file.
func withoutDescriptors(t *testing.T, fn func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	fn()
}

// TestProcessesThatAdoptionCannotOpen: an init and an exec run on when the supervisor that adopts them cannot open them at that
// moment. They are no ended ones: what ends has its cgroup killed.
func TestProcessesThatAdoptionCannotOpen(t *testing.T) {
	s := adoptingSet(t)
	init, initInput := waiting(t, 7)
	command, commandInput := waiting(t, 8)
	c := s.newContainer(record.Container{ID: "box", Stage: record.Running, Init: init})
	if err := os.MkdirAll(s.dir(c.id), 0o700); err != nil {
		t.Fatal(err)
	}
	e := c.newExecution("one")
	e.init = command
	c.execs[e.id] = e
	withoutDescriptors(t, func() {
		c.adoptInit(t.Context(), &c.rec)
		c.watch()
		go e.watchProtected()
		time.Sleep(statusTimeout + 200*time.Millisecond)
	})
	if isClosed(c.ended) || isClosed(e.done) {
		t.Fatalf("taken for ended: init %v, exec %v", isClosed(c.ended), isClosed(e.done))
	}
	initInput.Close()
	commandInput.Close()
	timeout := time.After(require.Patience(10 * time.Second))
	for _, ended := range []chan struct{}{c.exited, e.done} {
		select {
		case <-ended:
		case <-timeout:
			t.Fatal("the end is not noticed")
		}
	}
	if exit := c.Exit(); exit.Code != 7 || exit.Unknown {
		t.Errorf("exit of the init: %+v", exit)
	}
	if e.code != 8 || e.err != nil {
		t.Errorf("exit of the exec: %d %v", e.code, e.err)
	}
}

// TestExecThatDelaysNoAdoption: a predecessor died while it started an exec whose processes cannot be killed soon. No other
// container waits for them, and a caller that cancels gets its answer.
func TestExecThatDelaysNoAdoption(t *testing.T) {
	s := adoptingSet(t)
	if err := os.MkdirAll(s.dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	group := cgroup.Paths{"pids": t.TempDir()}
	procs := filepath.Join(group["pids"], "cgroup.procs")
	if err := unix.Mkfifo(procs, 0o600); err != nil { // a kill waits here until somebody writes
		t.Fatal(err)
	}
	started := (&Container{id: "box", set: s}).newExecution("one")
	started.group = group
	if err := started.write(); err != nil {
		t.Fatal(err)
	}
	c := s.newContainer(record.Container{ID: "box", Stage: record.Running})
	adopted := make(chan struct{})
	go func() {
		c.adoptExecs(t.Context())
		close(adopted)
	}()
	select {
	case <-adopted:
	case <-time.After(require.Patience(5 * time.Second)):
		t.Error("the adoption waits for the kill")
	}
	e, err := c.JoinExec("one")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cancelled := make(chan error, 1)
	go func() {
		_, _, err := e.Wait(ctx)
		cancelled <- err
	}()
	writer, err := os.OpenFile(procs, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(procs); err != nil {
		t.Error(err)
	}
	if isClosed(e.done) {
		t.Error("it has ended before it was killed")
	}
	writer.Close()
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that cancels gets %v", err)
	}
	if !isClosed(e.done) || !errors.Is(e.err, errs.Unavailable) {
		t.Errorf("the exec: %v", e.err)
	}
}

// TestExecWhosePidfdCannotBeReceived: a predecessor died after the process of an exec had begun, and the supervisor that adopts it
// can open no file at that moment. The exec runs on and has its exit code. It does not count as one that did not begin: its
// caller would run the command again.
func TestExecWhosePidfdCannotBeReceived(t *testing.T) {
	s := adoptingSet(t)
	command, input := waiting(t, 9)
	pidfd, err := openProcess(command)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	c := s.newContainer(record.Container{ID: "box", Stage: record.Running})
	if err := os.MkdirAll(s.dir(c.id), 0o700); err != nil {
		t.Fatal(err)
	}
	e := c.newExecution("one")
	c.execs[e.id] = e
	e.socket = sent(t, pidfd)
	adopted := make(chan struct{})
	withoutDescriptors(t, func() {
		go func() {
			defer close(adopted)
			e.adoptStarting(t.Context())
		}()
		time.Sleep(200 * time.Millisecond)
	})
	<-adopted
	input.Close()
	select {
	case <-e.done:
	case <-time.After(require.Patience(10 * time.Second)):
		t.Fatal("the end is not noticed")
	}
	if e.code != 9 || e.err != nil {
		t.Errorf("exit of the exec: %d %v", e.code, e.err)
	}
}

// sent returns the end of a socket to which a process that has ended has sent a descriptor.
func sent(t *testing.T, f *os.File) (receiver *os.File) {
	t.Helper()
	receiver, sender, err := sysfd.FDSocket()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { receiver.Close() })
	conn, err := sysfd.FileUnixConn(sender)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sysfd.SendFiles(conn, []byte("fd"), []*os.File{f}), conn.Close()); err != nil {
		t.Fatal(err)
	}
	return receiver
}

// TestLogOfAnEndedTerminalIsCompleted: the exit of a container was reported while the log took nothing, and output was still in the
// terminal. The supervisor that follows brings it into the log.
func TestLogOfAnEndedTerminalIsCompleted(t *testing.T) {
	s := adoptingSet(t)
	var err error
	if s.loop, err = logpump.NewLoop(); err != nil {
		t.Fatal(err)
	}
	go s.loop.Run(t.Context())
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slave.WriteString("last words\n"); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	toLog, writer, err := sysfd.InputPipe(sysfd.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	writer.Close()
	id, err := sysfd.PipeID(toLog)
	if err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	if err := os.MkdirAll(s.dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.held.Hold(t.Context(), "box/console", sent(t, master))
	s.held.Hold(t.Context(), "box/pipes", toLog)
	s.containers = map[string]*Container{}
	s.adoptOne(t.Context(), &record.Container{
		ID: "box", Stage: record.Exited, Exit: &supervisor.Exit{ID: "box"}, LogIncomplete: true, Terminal: true,
		Pipes: map[string]uint64{supervisor.StreamStdout: id}, Request: supervisor.CreateRequest{LogDir: logs, LogPath: "0.log"},
	})
	for end := time.Now().Add(require.Patience(10 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		if c, err := s.Find("box"); err != nil || !c.snapshot().LogIncomplete {
			break
		} else if time.Now().After(end) {
			t.Fatal("the log is not completed")
		}
	}
	if log, err := os.ReadFile(filepath.Join(logs, "0.log")); err != nil || !bytes.Contains(log, []byte("last words")) {
		t.Errorf("log %q, %v", log, err)
	}
}

// TestAttachToALostInput: all processes that held the terminal of a container have died. A client that wants to write to it is
// refused: its keys would go nowhere. One that only reads is not.
func TestAttachToALostInput(t *testing.T) {
	s := adoptingSet(t)
	loop, err := logpump.NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	for what, rec := range map[string]record.Container{
		"terminal": {Terminal: true},
		"pipe":     {Pipes: map[string]uint64{supervisor.StreamStdin: 1}},
	} {
		rec.ID, rec.Stage = "box", record.Running
		c := s.newContainer(rec)
		dir := t.TempDir()
		if c.pump, err = loop.Open(t.Context(), logpump.Config{Dir: dir}, nil, nil); err != nil {
			t.Fatal(err)
		}
		defer c.pump.Close()
		ctx, leave := context.WithCancel(t.Context())
		a := &Attachment{Input: true, Stdout: io.Discard, Joined: func() error { leave(); return nil }}
		if err := c.Attach(ctx, a); !errors.Is(err, errs.State) {
			t.Errorf("%s: to the input: %v", what, err)
		}
		a.Input = false
		if err := c.Attach(ctx, a); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: to the output: %v", what, err)
		}
		leave()
	}
}
