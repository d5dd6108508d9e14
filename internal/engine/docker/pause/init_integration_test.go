//go:build integration

package pause

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestInitReapsOrphans runs the program of each architecture as the init of a PID namespace, that
// of a foreign one with qemu.
func TestInitReapsOrphans(t *testing.T) {
	for architecture, emulator := range map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"} {
		t.Run(architecture, func(t *testing.T) {
			require.Root(t)
			require.Binary(t, "nsenter")
			command := []string{executableFor(t, architecture)}
			if architecture != runtime.GOARCH {
				command = append([]string{require.Binary(t, emulator)}, command...)
			}
			testInit(t, command)
		})
	}
}

func testInit(t *testing.T, command []string) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	start(t, cmd)

	// The orphans end all at once, when their standard input does: one SIGCHLD may stand for many.
	const orphans = 20
	for range 3 {
		input, hold, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		inside := enter(cmd, fmt.Sprintf("exec 3<&0; for i in $(seq %d); do cat <&3 & done", orphans))
		inside.Stdin = input
		if err := inside.Run(); err != nil {
			t.Fatal(err)
		}
		if err := input.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all orphans are children of the program", func() bool { return len(children(t, cmd)) == orphans })
		if err := hold.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all orphans are reaped", func() bool { return len(children(t, cmd)) == 0 })
	}

	// A process of the namespace ends its init. The kernel delivers only signals that the init
	// handles or blocks. The shell may be killed together with its namespace.
	_ = enter(cmd, "kill -TERM 1").Run()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the program ended with %v, want status 0", err)
	}
}

// enter returns a shell in the PID namespace of the program.
func enter(cmd *exec.Cmd, script string) *exec.Cmd {
	target := fmt.Sprintf("--target=%d", cmd.Process.Pid)
	return exec.Command("nsenter", target, "--pid", "sh", "-c", script)
}

// children returns the pids of all children of the program, zombies among them.
func children(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	return strings.Fields(read(t, cmd, fmt.Sprintf("task/%d/children", cmd.Process.Pid)))
}
