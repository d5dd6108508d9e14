package spawn

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestMain lets the test binary run as the keeper, the supervisor, or a daemon that calls Ensure.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 2 && os.Args[1] == "keep":
		var o keep.Options
		if o, err = keep.ParseArgs(os.Args[2:]); err == nil {
			err = keep.Run(context.Background(), o)
		}
	case len(os.Args) > 3 && os.Args[1] == "serve":
		err = serve(os.Args[3])
	case len(os.Args) > 2 && os.Args[1] == "ensure":
		err = Ensure(context.Background(), optionsFor(os.Args[2]))
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve is a supervisor that exits with status 0 when a client sends "end".
func serve(state string) error {
	client, err := keep.Attach(context.Background())
	if err != nil {
		return err
	}
	if _, err := keep.LockSupervisor(state); err != nil {
		return err
	}
	os.Remove(Socket(state))
	listener, err := net.Listen("unix", Socket(state))
	if err != nil {
		return err
	}
	if err := client.Ready(context.Background()); err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if line, _ := bufio.NewReader(conn).ReadString('\n'); line == "end\n" {
			os.Exit(0)
		}
		conn.Close()
	}
}

func optionsFor(state string) Options {
	return Options{Binary: "/proc/self/exe", StateDir: state, LogFile: filepath.Join(state, "log")}
}

// newState creates a state directory whose keeper is ended with the test.
func newState(t *testing.T) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := optionsFor(t.TempDir())
	o.Binary = self
	t.Cleanup(func() { endKeeper(t, o.StateDir) })
	return o
}

func endKeeper(t *testing.T, state string) {
	pid, err := sysfd.LockHolder(filepath.Join(state, keep.LockName))
	if err != nil || pid <= 0 {
		return
	}
	syscall.Kill(pid, syscall.SIGTERM)
	awaitEnd(t, pid)
}

func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	pidfd, err := sysproc.OpenPidfd(pid)
	if errors.Is(err, errs.NotFound) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := sysproc.AwaitExit(ctx, pidfd); err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
}

func keeperOf(t *testing.T, state string) int {
	t.Helper()
	pid, err := sysfd.LockHolder(filepath.Join(state, keep.LockName))
	if err != nil || pid <= 0 {
		t.Fatalf("no keeper: %d %v", pid, err)
	}
	return pid
}

func TestEnsureStartsADetachedKeeperOnce(t *testing.T) {
	o := newState(t)
	t.Setenv("BERTH_TEST_LEAK", "x")
	leak, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	if err := sysfd.SetCloseOnExec(int(leak.Fd()), false); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Ensure(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	pid := keeperOf(t, o.StateDir)
	if got := sessionOf(t, pid); got != pid {
		t.Errorf("session %d of keeper %d", got, pid)
	}
	if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); cwd != "/" {
		t.Errorf("keeper is in %s", cwd)
	}
	var s keep.Status
	data, err := os.ReadFile(filepath.Join(o.StateDir, keep.StatusName))
	if err != nil || json.Unmarshal(data, &s) != nil || s.Pid != pid || s.Restarts != 0 {
		t.Fatalf("status %s %v", data, err)
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.Supervisor))
	if err != nil || strings.Contains(string(environ), "BERTH_TEST_LEAK") {
		t.Errorf("supervisor's environment %q %v", environ, err)
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.Supervisor))
	if err != nil {
		t.Fatal(err)
	}
	nulls := 0
	for _, link := range links {
		if target, _ := os.Readlink(link); target == os.DevNull {
			nulls++
		}
	}
	if nulls != 1 {
		t.Errorf("%s is open %d times in the supervisor, once as its input is right", os.DevNull, nulls)
	}
}

func sessionOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	session, err := strconv.Atoi(fields[3])
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// A child between fork and execve may keep the socket of a dead supervisor open. Ensure does not
// take it for a supervisor.
func TestEnsureIgnoresTheSocketOfADeadSupervisor(t *testing.T) {
	o := newState(t)
	outlived, err := net.Listen("unix", Socket(o.StateDir))
	if err != nil {
		t.Fatal(err)
	}
	outlived.(*net.UnixListener).SetUnlinkOnClose(false)
	defer outlived.Close()
	if err := Ensure(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	keeperOf(t, o.StateDir)
	if holder, err := sysfd.LockHolder(filepath.Join(o.StateDir, keep.SupervisorLockName)); err != nil || holder <= 0 {
		t.Errorf("no supervisor after Ensure: %d %v", holder, err)
	}
}

func TestManyCallersStartOneKeeper(t *testing.T) {
	for range 5 {
		o := newState(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := Ensure(t.Context(), o); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if out, err := exec.Command(o.Binary, "ensure", o.StateDir).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		wg.Wait()
		pid := keeperOf(t, o.StateDir)
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			running := keepersIn(t, o.StateDir)
			if slices.Equal(running, []int{pid}) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("keepers %v, the lock is held by %d", running, pid)
			}
		}
	}
}

func keepersIn(t *testing.T, state string) []int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(data), "\x00keep\x00--state\x00"+state+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func TestIdleSupervisorLeavesNothingAndIsStartedAgain(t *testing.T) {
	o := newState(t)
	for range 5 {
		if err := Ensure(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		pid := keeperOf(t, o.StateDir)
		conn, err := net.Dial("unix", Socket(o.StateDir))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(conn, "end")
		conn.Close()
		// In half of the rounds Ensure is called while keeper and supervisor are exiting.
		if pid%2 == 0 {
			awaitEnd(t, pid)
		}
	}
}

func TestEnsureReportsTheReason(t *testing.T) {
	o := newState(t)
	o.Binary = "/nonexistent/berth-supervisor"
	if err := Ensure(t.Context(), o); !errors.Is(err, errs.NotFound) {
		t.Errorf("missing program: %v", err)
	}
	o.Binary = filepath.Join(o.StateDir, "broken")
	if err := os.WriteFile(o.Binary, []byte("#!/bin/sh\necho out of order >&2; exit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := Ensure(t.Context(), o)
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("broken program: %v", err)
	}
}
