package sysproc

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// TestMain lets the test binary be the child that holds a lock.
func TestMain(m *testing.M) {
	if path := os.Getenv("BERTH_SYS_TEST_LOCK"); path != "" {
		os.Exit(holdLock(path))
	}
	os.Exit(m.Run())
}

func holdLock(path string) int {
	if lock, _, err := sysfd.TryLock(path); err != nil || lock == nil {
		return 1
	}
	os.Stdout.WriteString("held\n")
	io.Copy(io.Discard, os.Stdin)
	return 0
}

func startShell(t *testing.T, script string) (*exec.Cmd, io.WriteCloser, *os.File) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read x; "+script)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := OpenPidfd(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pidfd.Close() })
	return cmd, stdin, pidfd
}

func TestStatusOfAChildIsSeenBeforeAndAfterReap(t *testing.T) {
	for script, want := range map[string]int32{"exit 0": 0, "exit 77": 77, "kill -TERM $$": 143, "kill -KILL $$": 137} {
		_, stdin, pidfd := startShell(t, script)
		if _, ok, err := PeekChild(pidfd); ok || err != nil {
			t.Fatalf("%s: a running child has ended: %v %v", script, ok, err)
		}
		pid, err := PidfdPid(pidfd)
		if err != nil {
			t.Fatal(err)
		}
		before, err := ReadProc(pid)
		if err != nil {
			t.Fatal(err)
		}
		stdin.Close()
		if err := AwaitExit(t.Context(), pidfd); err != nil {
			t.Fatal(err)
		}
		zombie, err := ReadProc(pid)
		if err != nil || !zombie.Zombie() || ExitCode(zombie.Status) != want || zombie.Start != before.Start {
			t.Errorf("%s: zombie %+v %v", script, zombie, err)
		}
		for range 2 {
			status, ok, err := PeekChild(pidfd)
			if err != nil || !ok || ExitCode(status) != want {
				t.Errorf("%s: peek %v %v %v", script, status, ok, err)
			}
		}
		status, ok, err := ReapChild(pidfd)
		if err != nil || !ok || ExitCode(status) != want {
			t.Errorf("%s: reap %v %v %v", script, status, ok, err)
		}
		if _, _, err := PeekChild(pidfd); !errors.Is(err, errs.NotFound) {
			t.Errorf("%s: peek after reap: %v", script, err)
		}
		if status, ok, err := PidfdStatus(pidfd); err != nil || ok && ExitCode(status) != want {
			t.Errorf("%s: kernel tells %v %v %v", script, status, ok, err)
		}
		if err := SignalPidfd(pidfd, syscall.SIGKILL); !errors.Is(err, errs.NotFound) {
			t.Errorf("%s: signal after reap: %v", script, err)
		}
	}
}

// TestNoPidfdOfALeader: a reaped process is not found while its process group lives. Neither is a thread, for which the kernel
// gives the same errors.
func TestNoPidfdOfALeader(t *testing.T) {
	leader := exec.Command("sh", "-c", "sleep 1000 &")
	leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := leader.Run(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-leader.Process.Pid, syscall.SIGKILL)
	thread := 0
	threads, err := os.ReadDir("/proc/self/task")
	for _, entry := range threads { // by name: the leader's number may be any of them
		if tid, err := strconv.Atoi(entry.Name()); err == nil && tid != os.Getpid() {
			thread = tid
		}
	}
	if err != nil || thread == 0 {
		t.Fatalf("threads %v, %v", threads, err)
	}
	for _, pid := range []int{leader.Process.Pid, thread} {
		if pidfd, err := OpenPidfd(pid); !errors.Is(err, errs.NotFound) {
			t.Errorf("%d: %v, %v", pid, pidfd, err)
		}
	}
}

func TestAwaitExitHonoursContext(t *testing.T) {
	cmd, stdin, pidfd := startShell(t, "exit 3")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := AwaitExit(ctx, pidfd); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait on a running process: %v", err)
	}
	stdin.Close()
	if err := AwaitExit(t.Context(), pidfd); err != nil {
		t.Errorf("wait after a cancelled wait: %v", err)
	}
	cmd.Wait()
}

func TestParseStatCountsFromTheLastBracket(t *testing.T) {
	tail := " 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 987654 0"
	line := "42 (a ) R 1 (b) Z 7" + tail
	p, err := parseStat([]byte(line))
	if err != nil || p.State != 'Z' || p.PPid != 7 || p.Start != 987654 || p.Exiting {
		t.Errorf("%+v %v", p, err)
	}
	if p, err := parseStat([]byte("42 (a) S 7 0 0 0 0 4194308" + tail[len(" 0 0 0 0 0"):])); err != nil || !p.Exiting || p.Start != 987654 {
		t.Errorf("a process that ends: %+v %v", p, err)
	}
	for _, bad := range []string{"", "42 (x", "42 (x) Z", "42 (x) Z y" + tail} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestLockReportsItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if holder, err := sysfd.LockHolder(path); holder != 0 || err != nil {
		t.Fatalf("holder of nothing: %d %v", holder, err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BERTH_SYS_TEST_LOCK="+path)
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(stdout, make([]byte, len("held\n")))
	if holder, err := sysfd.LockHolder(path); holder != cmd.Process.Pid || err != nil {
		t.Errorf("holder %d %v, want %d", holder, err, cmd.Process.Pid)
	}
	if lock, holder, err := sysfd.TryLock(path); lock != nil || holder != cmd.Process.Pid || err != nil {
		t.Errorf("try %v %d %v", lock, holder, err)
	}
	stdin.Close()
	cmd.Wait()
	lock, _, err := sysfd.TryLock(path)
	if err != nil || lock == nil {
		t.Fatalf("lock of a dead holder: %v %v", lock, err)
	}
	lock.Close()
}

func TestDescriptorsAreSent(t *testing.T) {
	ours, theirs, err := sysfd.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	peer, err := sysfd.FileUnixConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sysfd.SendFiles(ours, []byte("pipe"), []*os.File{r, w}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	buf := make([]byte, 16)
	n, files, err := sysfd.ReceiveFiles(peer, buf, "got")
	if err != nil || string(buf[:n]) != "pipe" || len(files) != 2 {
		t.Fatalf("%q %v %v", buf[:n], files, err)
	}
	files[1].WriteString("through " + strconv.Itoa(n))
	files[1].Close()
	if data, err := io.ReadAll(files[0]); err != nil || string(data) != "through 4" {
		t.Errorf("%q %v", data, err)
	}
	files[0].Close()
	if err := sysfd.SendFiles(ours, make([]byte, 17), nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sysfd.ReceiveFDs(peer, buf); err == nil {
		t.Error("a message longer than the buffer is no error")
	}
	ours.Close()
	if _, _, err := sysfd.ReceiveFDs(peer, buf); !errors.Is(err, io.EOF) {
		t.Errorf("closed peer: %v", err)
	}
	peer.Close()
}

func TestTakeFD(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	child := exec.Command("sleep", "1000")
	child.ExtraFiles = []*os.File{file}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid := child.Process.Pid
	taken, err := TakeFD(pid, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := errors.Join(child.Process.Kill(), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Error("the child was not killed")
	}
	if text, err := io.ReadAll(taken); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := TakeFD(pid, 3); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("of a process that is gone: %v", err)
	}
	if _, err := TakeFD(os.Getpid(), 1<<20); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}

// TestNoPidfdOfAnUnknownProcess: a process whose number is not known does not count as one that has ended.
func TestNoPidfdOfAnUnknownProcess(t *testing.T) {
	for _, pid := range []int{0, -1} {
		if pidfd, err := OpenPidfd(pid); !errors.Is(err, errs.Invalid) || errors.Is(err, errs.NotFound) {
			t.Errorf("%d: %v, %v", pid, pidfd, err)
		}
	}
}
