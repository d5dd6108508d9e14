package nodeimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
)

// run runs a program of this host. Its error has the program's last lines. When ctx ends, the
// program and its children are killed, and their mounts are gone, so that their files can be
// removed.
func run(ctx context.Context, out io.Writer, name string, args ...string) error {
	words, err := runApart(ctx, out, syscall.CLONE_NEWNS, name, args)
	if errors.Is(err, syscall.EPERM) {
		// In a container without that right nothing gets mounted.
		words, err = runApart(ctx, out, 0, name, args)
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if exec := (*exec.Error)(nil); errors.As(err, &exec) {
		return fmt.Errorf("cannot run %s; is it installed?: %w: %w", name, errs.Unsupported, err)
	}
	lines := strings.Split(strings.TrimSpace(words), "\n")
	return fmt.Errorf("%s: %w:\n  %s", filepath.Base(name), err, strings.Join(lines[max(0, len(lines)-5):], "\n  "))
}

// runApart runs a program in a process group and namespaces of its own.
func runApart(ctx context.Context, out io.Writer, namespaces uintptr, name string, args []string) (words string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if out != nil {
		cmd.Stdout = out
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: namespaces}
	cmd.Cancel = func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	err = cmd.Run()
	return text.String(), err
}
