package keep

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestMain lets the test binary run as one of the processes under test: a keeper, a supervisor that
// the test controls through a socket, the supervisor's self-test, or a container.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 {
		os.Exit(m.Run())
	}
	state := os.Args[2]
	var err error
	switch os.Args[1] {
	case "keep":
		err = Run(context.Background(), keeperOptions(state, os.Args[3:]))
	case "serve":
		err = serveTest(state)
	case "selftest":
		err = selfTest(state)
	case "worker":
		work(os.Args[3])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[1], err)
		os.Exit(1)
	}
}

// keeperOptions parses the words after "keep DIR": idle, impatient, cgroup=NAME.
func keeperOptions(state string, words []string) Options {
	o := Options{
		StateDir: state,
		Binary:   filepath.Join(state, "binary"),
		Args:     []string{"serve", state},
		SelfTest: []string{"selftest", state},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	o.ExitWhenIdle = slices.Contains(words, "idle")
	if slices.Contains(words, "impatient") {
		o.StopTimeout, o.OrphanGrace = 50*time.Millisecond, 50*time.Millisecond
	}
	for _, word := range words {
		if name, ok := strings.CutPrefix(word, "cgroup="); ok {
			o.Cgroup = name
		}
	}
	return o
}

// work waits for a byte on its input or for SIGUSR1, and exits with the given code.
func work(code string) {
	n, _ := strconv.Atoi(code)
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1)
	fmt.Printf("last words of %d", os.Getpid())
	os.NewFile(startedFD, "started").Close()
	go func() {
		<-told
		os.Exit(n)
	}()
	os.Stdin.Read(make([]byte, 1))
	os.Exit(n)
}

// startedFD is a pipe that a worker closes once it handles its signal.
const startedFD = 4

func selfTest(state string) error {
	if _, err := os.Stat(filepath.Join(state, "broken")); err == nil {
		return errors.New("this binary is broken")
	}
	return nil
}

// testSupervisor is the supervisor of the tests. It runs one command per line:
//
//	spawn CODE       start a worker, answer "pid start key"
//	exit PID START   ask the keeper how a worker ended
//	forget PID START
//	held KEY         read what the pipe under KEY holds without taking it
//	keys             list the keys that were fetched at its start, or added
//	release KEY
//	close KEY        close one of the files, still listed
//	upgrade
//	end CODE         end with CODE
type testSupervisor struct {
	client *Client
	held   []Held
	state  string
}

func serveTest(state string) error {
	ctx := context.Background()
	client, err := Attach(ctx)
	if err != nil {
		return err
	}
	if _, err := LockSupervisor(state); err != nil {
		return err
	}
	s := &testSupervisor{client: client, state: state}
	err = s.serve(ctx)
	if errors.Is(err, errs.Unavailable) {
		return client.TakeOver(s.held)
	}
	return err
}

// serve returns an error of kind Unavailable when the keeper is lost.
func (s *testSupervisor) serve(ctx context.Context) (err error) {
	client, state := s.client, s.state
	if s.held, err = client.Held(ctx); err != nil {
		return err
	}
	path := filepath.Join(state, "supervisor.sock")
	if err := errs.IgnoreNotExist(os.Remove(path)); err != nil {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	if err := client.Ready(ctx); err != nil {
		return err
	}
	conns := make(chan net.Conn)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns <- conn
		}
	}()
	for {
		select {
		case <-client.Lost():
			return errs.Unavailable
		case conn := <-conns:
			s.obey(ctx, conn)
		}
	}
}

func (s *testSupervisor) obey(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	words := strings.Fields(line)
	text, err := s.do(ctx, words[0], words[1:])
	if err != nil {
		text = "error: " + err.Error()
	}
	fmt.Fprintln(conn, text)
}

func (s *testSupervisor) do(ctx context.Context, verb string, args []string) (string, error) {
	switch verb {
	case "spawn":
		return s.spawn(ctx, args[0])
	case "exit":
		pid, start := processOf(args)
		exit, err := s.client.Exit(ctx, pid, start)
		return strconv.Itoa(int(sysproc.ExitCode(exit.Status))), err
	case "forget":
		pid, start := processOf(args)
		return "ok", s.client.Forget(ctx, pid, start)
	case "held":
		return s.peek(args[0])
	case "keys":
		var keys []string
		for _, h := range s.held {
			keys = append(keys, fmt.Sprintf("%s=%d", h.Key, len(h.Files)))
		}
		return strings.Join(keys, " "), nil
	case "release":
		return "ok", s.client.Release(ctx, args[0])
	case "close":
		for _, h := range s.held {
			if h.Key == args[0] {
				h.Files[1].Close()
			}
		}
		return "ok", nil
	case "upgrade":
		return "ok", s.client.Upgrade(ctx)
	case "end":
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	}
	return "", fmt.Errorf("no verb %q", verb)
}

func processOf(args []string) (pid int, start uint64) {
	pid, _ = strconv.Atoi(args[0])
	start, _ = strconv.ParseUint(args[1], 10, 64)
	return pid, start
}

// spawn starts a worker. The keeper holds its input and output pipes, as for a container. The
// worker also has the writing end of its input, so that it does not exit when the holders do.
func (s *testSupervisor) spawn(ctx context.Context, code string) (string, error) {
	in, feed, err := os.Pipe()
	if err != nil {
		return "", err
	}
	out, words, err := os.Pipe()
	if err != nil {
		return "", err
	}
	started, startedWriter, err := os.Pipe()
	if err != nil {
		return "", err
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"worker", "worker", s.state, code}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{in.Fd(), words.Fd(), 2, feed.Fd(), startedWriter.Fd()},
	})
	if err != nil {
		return "", err
	}
	proc, err := sysproc.ReadProc(pid)
	if err != nil {
		return "", err
	}
	key := "w" + strconv.Itoa(pid) + "/io"
	in.Close()
	startedWriter.Close()
	if _, err := started.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("worker did not start: %w", err)
	}
	started.Close()
	s.held = append(s.held, Held{key, []*os.File{feed, out, words}})
	if err := s.client.Hold(ctx, key, feed, out, words); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %d %s", pid, proc.Start, key), nil
}

// peek makes a worker exit through its input pipe and reads its output.
func (s *testSupervisor) peek(key string) (string, error) {
	for _, h := range s.held {
		if h.Key != key {
			continue
		}
		if _, err := io.WriteString(h.Files[0], "\n"); err != nil {
			return "", err
		}
		buf := make([]byte, 100)
		n, err := h.Files[1].Read(buf)
		return string(buf[:n]), err
	}
	return "", fmt.Errorf("no key %s", key)
}
