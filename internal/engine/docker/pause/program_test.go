package pause

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// withoutWait is in the environment of a test process that refuses itself rt_sigtimedwait, and
// executes the program of that path.
const withoutWait = "BERTH_TEST_PAUSE_WITHOUT_WAIT"

func TestMain(m *testing.M) {
	if path := os.Getenv(withoutWait); path != "" {
		fmt.Fprintln(os.Stderr, execWithoutWait(path))
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// executable returns the file of the program for this host.
func executable(t *testing.T) string {
	t.Helper()
	return executableFor(t, runtime.GOARCH)
}

func executableFor(t *testing.T, architecture string) string {
	t.Helper()
	data, err := program(architecture)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts the program and waits until it waits for signals.
func start(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	eventually(t, "the program waits for signals", func() bool { return waits(t, cmd) })
	return cmd
}

// waits reports whether the process is in rt_sigtimedwait.
func waits(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	return strings.HasPrefix(read(t, cmd, "syscall"), fmt.Sprintf("%d ", unix.SYS_RT_SIGTIMEDWAIT))
}

// read returns one of the kernel's files about the process.
func read(t *testing.T, cmd *exec.Cmd, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", cmd.Process.Pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func signal(t *testing.T, cmd *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for what the kernel sends no event about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func TestSignalsEndTheProgram(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := start(t, exec.Command(executable(t)))
		signal(t, cmd, sig)
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %v it ended with %v, want status 0", sig, err)
		}
	}
}

func TestProgramGoesOnAfterAStop(t *testing.T) {
	cmd := start(t, exec.Command(executable(t)))
	signal(t, cmd, syscall.SIGSTOP)
	eventually(t, "the program is stopped", func() bool {
		return strings.Contains(read(t, cmd, "status"), "\nState:\tT")
	})
	signal(t, cmd, syscall.SIGCONT)
	eventually(t, "the program waits again", func() bool { return waits(t, cmd) })
	// A signal about a child that it does not have.
	signal(t, cmd, syscall.SIGCHLD)
	eventually(t, "SIGCHLD is consumed", func() bool {
		return strings.Contains(read(t, cmd, "status"), "\nShdPnd:\t0000000000000000\n") && waits(t, cmd)
	})
	signal(t, cmd, syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v, want status 0", err)
	}
}

// TestProgramEndsWithoutTheCall: a seccomp profile may refuse what the program needs. It must not
// loop then.
func TestProgramEndsWithoutTheCall(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), withoutWait+"="+executable(t))
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v, want status 1: %s", err, output)
	}
}

// execWithoutWait executes a program in this process, to which the kernel refuses
// rt_sigtimedwait. It returns only an error.
func execWithoutWait(path string) error {
	runtime.LockOSThread()
	number := uint32(unix.SYS_RT_SIGTIMEDWAIT)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: number},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := setFilter(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return err
	}
	return syscall.Exec(path, []string{path}, nil)
}
