package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/cli/top/screen"
	"github.com/berthrun/berth/internal/podusage"
)

// selfPath is this program, also when its file has been replaced.
const selfPath = "/proc/self/exe"

// execArgs are the arguments of `berth` for a shell in a container. The pod's id is exact, and names cannot be taken
// for flags.
func execArgs(endpoint string, pod *podusage.Pod, container *podusage.Container, shell []string) []string {
	args := []string{"pod", "exec", "-it", "--endpoint=" + endpoint, "--container=" + container.Name, pod.ID, "--"}
	return append(args, shell...)
}

// shellIn runs a shell in a container, on the terminal that the screen has left, and returns what to say of it. It is a
// process of its own: whatever reads the terminal for the session ends with it.
func shellIn(ctx context.Context, s *screen.Screen, args []string) string {
	cmd := exec.CommandContext(ctx, selfPath, args...)
	cmd.Args[0] = "berth" // the name decides which program it is
	var said head
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return ""
	case said.firstLine() != "":
		return strings.TrimPrefix(said.firstLine(), "berth: ")
	case errors.As(err, &exit):
		return fmt.Sprintf("the shell has ended with exit code %d", exit.ExitCode())
	}
	return "cannot run a shell: " + err.Error()
}

// head keeps the begin of what is written to it.
type head struct{ text []byte }

// saidBytes bounds what is kept of a message.
const saidBytes = 1024

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	h.text = append(h.text, p[:min(len(p), saidBytes-len(h.text))]...)
	return len(p), nil
}

func (h *head) firstLine() string {
	first, _, _ := bytes.Cut(bytes.TrimSpace(h.text), []byte("\n"))
	return string(first)
}
