//go:build integration

package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/terminal"
)

// topOn runs `berth top` on a terminal.
func topOn(b *harness.Berth, x *terminal.Terminal, env []string, args ...string) *exec.Cmd {
	cmd := command(b, append([]string{"top", "--interval", "1s"}, args...)...)
	cmd.Env = append(cmd.Env, append([]string{"TERM=xterm", "NO_COLOR="}, env...)...)
	x.Start(cmd)
	return cmd
}

// codeOf waits for the end of a command and returns its exit code.
func codeOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// TestTop: the table, the log, a shell, a restart of the daemon, another size. The terminal is what it was at the end.
func TestTop(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.RunPod("web", "echo from-the-log; exec sleep 1000")
	x := terminal.Open(t, 80, 24)
	before := x.Modes()
	cmd := topOn(b, x, nil)
	x.Await("the pod with its figures", func(s terminal.Screen) bool {
		return s.Second && !s.Cursor && s.Has("default/web") && s.Has("running") && s.Has("Pods 1 ready") && s.Has("%") && s.Colours > 0 && !s.Has(" ID ")
	})
	x.Resize(120, 40)
	x.Await("the columns of a wide terminal", func(s terminal.Screen) bool { return s.Has(" ID ") && s.Has("default/web") })
	x.Resize(80, 24)

	x.Type("l")
	x.Await("the log", func(s terminal.Screen) bool { return s.Has("log of default/web c") && s.Has("from-the-log") })
	x.Type("q")
	x.Await("the table", func(s terminal.Screen) bool { return s.Has("default/web") && !s.Has("log of") })

	x.Type("e")
	x.Await("a shell", func(s terminal.Screen) bool { return !s.Second && s.Cursor && strings.ContainsAny(s.String(), "#$") })
	x.Type("echo sum-$((40+2))\n")
	x.Await("the shell's answer", func(s terminal.Screen) bool { return s.Has("sum-42") })
	x.Type("exit 3\n")
	x.Await("the table with the shell's end", func(s terminal.Screen) bool { return s.Second && s.Has("exit code 3") && s.Has("default/web") })

	b.KillDaemon()
	x.Await("the report of the daemon's end", func(s terminal.Screen) bool { return s.Has("closed the connection") && s.Has("default/web") })
	b.StartDaemon()
	x.Await("the report of its return", func(s terminal.Screen) bool { return s.Has("connected again after") && s.Has("running") })

	x.Type("\x03")
	if code := codeOf(t, cmd); code != 0 {
		t.Errorf("after Ctrl-C the exit code is %d", code)
	}
	shown := x.Await("the first screen", func(s terminal.Screen) bool { return !s.Second })
	if diff := cmp.Diff(before, x.Modes()); diff != "" || !shown.Cursor || !shown.Wrap {
		t.Errorf("the terminal is not what it was: cursor %v, wrap %v, modes %s", shown.Cursor, shown.Wrap, diff)
	}

	t.Run("SIGTERM", func(t *testing.T) {
		x := terminal.Open(t, 80, 24)
		before := x.Modes()
		cmd := topOn(b, x, []string{"NO_COLOR=1"}, "--filter", "WEB", "--sort", "name")
		shown := x.Await("the pod", func(s terminal.Screen) bool { return s.Has("default/web") && s.Has("running") })
		if shown.Colours > 0 {
			t.Errorf("with NO_COLOR %d characters have a colour", shown.Colours)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := codeOf(t, cmd); code != 128+int(syscall.SIGTERM) {
			t.Errorf("the exit code is %d", code)
		}
		x.Await("the first screen", func(s terminal.Screen) bool { return !s.Second && s.Cursor && s.Wrap })
		if diff := cmp.Diff(before, x.Modes()); diff != "" {
			t.Errorf("the terminal's modes have changed: %s", diff)
		}
	})
}

// TestTopWithoutDaemon: the error comes before the terminal is taken.
func TestTopWithoutDaemon(t *testing.T) {
	x := terminal.Open(t, 400, 24) // the error has a long path
	cmd := exec.Command(filepath.Join(harness.BinDir(t), "berth"), "top", "--endpoint", "unix://"+filepath.Join(t.TempDir(), "s"))
	cmd.Env = append(os.Environ(), "TERM=xterm")
	x.Start(cmd)
	if code := codeOf(t, cmd); code != 1 {
		t.Errorf("the exit code is %d", code)
	}
	x.Await("the error", func(s terminal.Screen) bool { return !s.Second && s.Has("there is no such socket") })
}
