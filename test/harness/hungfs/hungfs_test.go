package hungfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// victimDir names the directory of a test program that is killed.
const victimDir = "BERTH_TEST_HUNGFS_VICTIM"

// client is a process that sends the file system a request.
type client struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	ended chan error
}

func request(t *testing.T, command string) *client {
	t.Helper()
	return requestWith(t, nil, command)
}

func requestWith(t *testing.T, stdin io.Reader, command string) *client {
	t.Helper()
	a := &client{cmd: exec.Command("sh", "-c", command), ended: make(chan error, 1)}
	a.cmd.Stdin, a.cmd.Stdout, a.cmd.Stderr = stdin, &a.out, &a.out
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { a.ended <- a.cmd.Wait() }()
	return a
}

// waits checks that the request still waits.
func (a *client) waits(t *testing.T) {
	t.Helper()
	select {
	case err := <-a.ended:
		t.Fatalf("%s: has ended: %v: %s", a.cmd, err, a.out.Bytes())
	case <-time.After(200 * time.Millisecond):
	}
}

// end returns how the process ended.
func (a *client) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(require.Patience(20 * time.Second)):
		t.Fatalf("%s: still waits", a.cmd)
		return nil
	}
}

// place creates a source directory with one file, and a mount point for it.
func place(t *testing.T) (dir, at string) {
	t.Helper()
	dir, at = t.TempDir(), filepath.Join(t.TempDir(), "at")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, at
}

// servers are the processes that serve the file system at a place.
func servers(t *testing.T, at string) []string {
	t.Helper()
	var all []string
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		args, _ := os.ReadFile(line)
		if split := strings.Split(string(args), "\x00"); split[0] == serverName && slices.Contains(split, at) {
			all = append(all, line)
		}
	}
	return all
}

func nothingLeft(t *testing.T, at string) {
	t.Helper()
	if left := append(holders(at), servers(t, at)...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAllWhoAskWaitWhileItHangs(t *testing.T) {
	dir, at := place(t)
	disk := Mount(t, dir, at)
	read := func() *client { return request(t, "cat "+at+"/file") }
	for range 2 {
		if a := read(); a.end(t) != nil || a.out.String() != "text" {
			t.Fatalf("read %q", a.out.String())
		}
		disk.Hang()
		disk.Hang() // no more than once
		all := []*client{read(), request(t, "echo more >"+at+"/new"), request(t, "ls "+at), read()}
		for _, a := range all {
			a.waits(t)
		}
		disk.Answer()
		disk.Answer()
		for _, a := range all {
			if err := a.end(t); err != nil {
				t.Errorf("%s: %v: %s", a.cmd, err, a.out.Bytes())
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || string(text) != "more\n" {
		t.Errorf("wrote %q: %v", text, err)
	}
}

func TestKilledAskerWaitsToo(t *testing.T) {
	dir, at := place(t)
	disk := Mount(t, dir, at)
	disk.Hang()
	a := request(t, "exec cat "+at+"/file")
	a.waits(t)
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.waits(t)
	disk.Answer()
	if err := a.end(t); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("ended by %v", err)
	}
}

func TestEndLeavesNothing(t *testing.T) {
	for range 3 {
		dir, at := place(t)
		t.Run("mounted", func(t *testing.T) {
			Mount(t, dir, at)
			if got := servers(t, at); len(got) != 1 {
				t.Fatalf("served by %v", got)
			}
		})
		nothingLeft(t, at)
	}
}

func TestEndWhileItHangs(t *testing.T) {
	for range 3 {
		dir, at := place(t)
		var all []*client
		t.Run("hung", func(t *testing.T) {
			Mount(t, dir, at).Hang()
			for range 3 {
				all = append(all, request(t, "exec cat "+at+"/file"))
			}
			all[0].waits(t)
			if err := all[1].cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		})
		for _, a := range all {
			_ = a.end(t) // one was killed, and one may have come late
		}
		nothingLeft(t, at)
	}
}

// A container that a test has left, or another process, copies the host's mounts: the file system
// stays mounted in another namespace. Nothing waits for that.
func TestEndWhileMountedElsewhere(t *testing.T) {
	require.Binary(t, "unshare")
	dir, at := place(t)
	var other *client
	var say *os.File
	began := time.Now()
	t.Run("mounted", func(t *testing.T) {
		Mount(t, dir, at)
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		say = write
		copied := filepath.Join(filepath.Dir(at), "copied")
		other = requestWith(t, read, "exec unshare --mount --propagation private sh -c 'touch "+copied+"; read word; cat "+at+"/file'")
		for !exists(copied) {
			if time.Since(began) > require.Patience(20*time.Second) {
				t.Fatal("the mounts are not copied")
			}
			time.Sleep(10 * time.Millisecond)
		}
		began = time.Now()
	})
	if took := time.Since(began); took > require.Patience(answerTimeout/2) {
		t.Errorf("ended after %s", took)
	}
	if all := holders(at); len(all) != 1 {
		t.Errorf("held by %v", all)
	}
	say.Close()
	if err := other.end(t); err == nil || !strings.Contains(other.out.String(), "not connected") {
		t.Errorf("the other read: %v: %s", err, other.out.Bytes())
	}
	nothingLeft(t, at)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// recorder is a test whose failures are expected.
type recorder struct {
	testing.TB
	cleanup func()
	said    string
}

func (r *recorder) Cleanup(f func())           { r.cleanup = f }
func (r *recorder) Errorf(f string, of ...any) { r.said += fmt.Sprintf(f, of...) + "\n" }

func TestServerThatDoesNotEndIsKilled(t *testing.T) {
	for name, says := range map[string]string{"stopped": "signal: killed", "quits": "SIGQUIT: quit"} {
		t.Run(name, func(t *testing.T) {
			dir, at := place(t)
			r := &recorder{TB: t}
			disk := Mount(r, dir, at)
			disk.Hang()
			a := request(t, "exec cat "+at+"/file")
			a.waits(t)
			signal := syscall.SIGQUIT
			if name == "stopped" {
				signal, disk.answerTimeout = syscall.SIGSTOP, 300*time.Millisecond
			}
			if err := disk.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			r.cleanup()
			if !strings.Contains(r.said, says) {
				t.Errorf("said %q", r.said)
			}
			if err := a.end(t); err == nil {
				t.Error("the client got an answer")
			}
			nothingLeft(t, at)
		})
	}
}

func TestTestProgramDiesWhileItHangs(t *testing.T) {
	if at := os.Getenv(victimDir); at != "" {
		Mount(t, filepath.Join(at, "..", "dir"), at).Hang()
		fmt.Println("hangs")
		select {}
	}
	require.Root(t)
	require.FUSE(t)
	top := t.TempDir()
	at := filepath.Join(top, "at")
	for _, dir := range []string{at, filepath.Join(top, "dir")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	victim := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	victim.Env = append(os.Environ(), victimDir+"="+at)
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	a := request(t, "ls "+at)
	a.waits(t)
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	_ = a.end(t)
	for deadline := time.Now().Add(require.Patience(20 * time.Second)); len(servers(t, at)) > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	nothingLeft(t, at)
}
