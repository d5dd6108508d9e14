package launch

import (
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
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestMain lets the test binary run as the launcher.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != Role {
		os.Exit(m.Run())
	}
	if err := Run(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// start starts a launcher whose program leaves a process.
func start(t *testing.T, persist bool) (launcher *exec.Cmd, conn *net.UnixConn) {
	t.Helper()
	dir := t.TempDir()
	return startOrder(t, &Order{
		Args: []string{"/bin/sh", "-c", "sleep 1000 & echo $! > pid"},
		Dir:  dir, PidFile: filepath.Join(dir, "pid"), Timeout: time.Minute, Lock: filepath.Join(dir, "lock"), Persist: persist,
	})
}

func startOrder(t *testing.T, order *Order) (launcher *exec.Cmd, conn *net.UnixConn) {
	t.Helper()
	conn, theirs, err := sysfd.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	launcher = exec.Command("/proc/self/exe", Role, string(text))
	launcher.Stderr, launcher.ExtraFiles = os.Stderr, []*os.File{theirs}
	if err := launcher.Start(); err != nil {
		t.Fatal(err)
	}
	return launcher, conn
}

// What a program has left ends with a supervisor that has not recorded it: the successor does not know it.
func TestEndOfTheSupervisor(t *testing.T) {
	for name, tc := range map[string]struct {
		persist, release, kept bool
	}{
		"dies":     {},
		"released": {release: true, kept: true},
		"persists": {persist: true, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			launcher, conn := start(t, tc.persist)
			defer conn.Close()
			var result Result
			if err := json.NewDecoder(conn).Decode(&result); err != nil || !result.Done || result.Pid == 0 {
				t.Fatalf("result %+v, %v", result, err)
			}
			pidfd, err := sysproc.OpenPidfd(result.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer pidfd.Close()
			defer sysproc.SignalPidfd(pidfd, syscall.SIGKILL)
			if tc.release {
				if _, err := conn.Write([]byte{Released}); err != nil {
					t.Fatal(err)
				}
			}
			conn.Close()
			if err := launcher.Wait(); err != nil {
				t.Errorf("the launcher: %v", err)
			}
			if ended, err := sysproc.PidfdEnded(pidfd); err != nil || ended == tc.kept {
				t.Errorf("the process has ended: %v, %v", ended, err)
			}
		})
	}
}

// TestLockOfAnotherProcess: a client repeats a call that found the lock of the container taken, by a removal or by the launcher
// of a supervisor that was killed.
func TestLockOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	lock, _, err := sysfd.TryLock(filepath.Join(dir, "lock"))
	if err != nil || lock == nil {
		t.Fatalf("the lock of the test: %v, %v", lock, err)
	}
	defer lock.Close()
	_, err = Start(t.Context(), &Command{Env: os.Environ(), Order: Order{Args: []string{"/bin/true"}, Dir: dir, Lock: filepath.Join(dir, "lock")}})
	if want := fmt.Sprintf("process %d works on the container", os.Getpid()); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want Unavailable and %q", err, want)
	}
}

// TestLauncherOfARemovedContainerEnds: a launcher that cannot take its lock, because the container's directory is gone, ends
// with its supervisor.
func TestLauncherOfARemovedContainerEnds(t *testing.T) {
	launcher, conn := startOrder(t, &Order{Args: []string{"/bin/true"}, Dir: "/", Timeout: time.Minute, Lock: filepath.Join(t.TempDir(), "gone", "lock")})
	defer conn.Close()
	var result Result
	if err := json.NewDecoder(conn).Decode(&result); err != nil || result.Done || result.Error == "" {
		t.Errorf("result %+v, %v", result, err)
	}
	conn.Close()
	ended := make(chan error, 1)
	go func() { ended <- launcher.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the launcher: %v", err)
		}
	case <-time.After(require.Patience(10 * time.Second)):
		t.Error("the launcher does not end")
		_ = launcher.Process.Kill()
	}
}

// TestApart: what a program mounts is not on the host, and what the host mounts later reaches the program. It has a session
// keyring of its own.
func TestApart(t *testing.T) {
	require.Root(t)
	shared, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("berth-test", shared, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(shared, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", shared, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	own, host := filepath.Join(shared, "own"), filepath.Join(shared, "host")
	for _, dir := range []string{own, host} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dir, keyring := t.TempDir(), "_ses."+filepath.Base(shared)+strconv.Itoa(os.Getpid())
	begun, err := Start(t.Context(), &Command{Env: os.Environ(), Order: Order{
		Args: []string{"/bin/sh", "-c", "mount -t tmpfs berth-test " + own + " && cat /proc/keys > keys && { sleep 1000 & echo $! > pid; }"},
		Dir:  dir, PidFile: filepath.Join(dir, "pid"), Apart: keyring,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer begun.Abandon()
	// The kernel shows a keyring to those that have it.
	if keys, err := os.ReadFile(filepath.Join(dir, "keys")); err != nil || !strings.Contains(string(keys), " "+keyring+": ") {
		t.Errorf("the program has no keyring %s of its own: %q, %v", keyring, keys, err)
	}
	if is, err := sysmount.IsMountPoint(own); err != nil || is {
		t.Errorf("the host has the mount of the program: %v, %v", is, err)
	}
	if err := unix.Mount("berth-test", host, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	table, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", begun.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	mounts, err := mountinfo.GetMountsFromReader(table, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{own, host} {
		if !slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == place }) {
			t.Errorf("the program does not have the mount %s", place)
		}
	}
}

// TestCovers: the program finds one directory at the path of another. The host does not.
func TestCovers(t *testing.T) {
	require.Root(t)
	dir, below, over := t.TempDir(), t.TempDir(), t.TempDir()
	begun, err := Start(t.Context(), &Command{Env: os.Environ(), Order: Order{
		Args: []string{"/bin/sh", "-c", "echo $$ > " + filepath.Join(below, "procs")}, Dir: dir,
		Covers: map[string]string{below: over},
	}})
	if err != nil {
		t.Fatal(err)
	}
	begun.Release()
	if _, err := os.Stat(filepath.Join(over, "procs")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(below); err != nil || len(left) != 0 {
		t.Errorf("the program has written to the directory below: %v, %v", left, err)
	}
	if is, err := sysmount.IsMountPoint(below); err != nil || is {
		t.Errorf("the host has the mount: %v, %v", is, err)
	}
}

// A launcher that is killed takes its program with it: the supervisor removes what that has made.
func TestDeathOfTheLauncher(t *testing.T) {
	for _, apart := range []string{"", "_ses.test"} {
		if apart != "" {
			require.Root(t)
		}
		conn, theirs, err := sysfd.SocketPair()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		dir := t.TempDir()
		text, err := json.Marshal(Order{Args: []string{"/bin/sh", "-c", "echo $$ > .pid; mv .pid pid; exec sleep 1000"}, Dir: dir, Timeout: time.Minute, Apart: apart})
		if err != nil {
			t.Fatal(err)
		}
		launcher := exec.Command("/proc/self/exe", Role, string(text))
		launcher.Stderr, launcher.ExtraFiles = os.Stderr, []*os.File{theirs}
		if err := launcher.Start(); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		var data []byte
		for deadline := time.Now().Add(10 * time.Second); len(data) == 0; time.Sleep(5 * time.Millisecond) {
			data, _ = os.ReadFile(filepath.Join(dir, "pid"))
			if time.Now().After(deadline) {
				t.Fatal("the program did not start")
			}
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		pidfd, err := sysproc.OpenPidfd(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer pidfd.Close()
		time.Sleep(50 * time.Millisecond) // the end of a thread of the launcher must not end the program
		if ended, err := sysproc.PidfdEnded(pidfd); ended || err != nil {
			t.Errorf("apart %q: the program has ended before the launcher (%v)", apart, err)
		}
		if err := launcher.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = launcher.Wait()
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		if err := sysproc.AwaitExit(ctx, pidfd); err != nil {
			t.Errorf("apart %q: the program outlives its launcher: %v", apart, err)
		}
		stop()
	}
}
