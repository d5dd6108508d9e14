// Package hooks runs the OCI hooks of the host: prestart, createRuntime, poststart and poststop. Those of
// createContainer and startContainer run in the container, by its init.
//
// libcontainer would run them, too. But it waits for ever for a process that a hook has left behind with the hook's
// output open, passes the supervisor's environment on, and runs poststart hooks when it creates a container. Package
// hooks writes errors in libcontainer's form, with the program of the hook.
package hooks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// The stages that this package runs, and that of the container's init.
const (
	Prestart       = "prestart"
	CreateRuntime  = "createRuntime"
	StartContainer = "startContainer"
	Poststart      = "poststart"
	Poststop       = "poststop"
)

// Kept are the hooks that are needed after the creation of a container. They are a part of its record.
type Kept struct {
	// Annotations are those of the spec. Hooks get them.
	Annotations map[string]string `json:"annotations,omitempty"`
	// StartContainer is true when the init runs hooks before it executes the program.
	StartContainer bool         `json:"startContainer,omitempty"`
	Poststart      []specs.Hook `json:"poststart,omitempty"`
	Poststop       []specs.Hook `json:"poststop,omitempty"`
}

// KeptOf returns those of a spec, nil for none.
func KeptOf(spec *specs.Spec) *Kept {
	h := spec.Hooks
	if h == nil || len(h.StartContainer)+len(h.Poststart)+len(h.Poststop) == 0 {
		return nil
	}
	return &Kept{Annotations: spec.Annotations, StartContainer: len(h.StartContainer) > 0, Poststart: h.Poststart, Poststop: h.Poststop}
}

// RunOne runs a hook to its end. state is its input. The error has the hook's program, and the end of what it has
// printed. Kind Deadline when the hook or ctx took too long, Unavailable when the hook has failed.
func RunOne(ctx context.Context, hook *specs.Hook, state *specs.State) error {
	input, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("cannot encode the state of container %s: %w", state.ID, err)
	}
	inner, stop := context.WithCancel(ctx)
	if hook.Timeout != nil {
		inner, stop = context.WithTimeout(ctx, time.Duration(*hook.Timeout)*time.Second)
	}
	defer stop()
	output := &tail{}
	err = run(command(inner, hook, input, output))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: it took too long, and was killed: %w%s", hook.Path, errs.Deadline, output)
	case inner.Err() != nil:
		return fmt.Errorf("%s: it ran longer than its timeout of %d s, and was killed: %w%s", hook.Path, *hook.Timeout, errs.Deadline, output)
	}
	return fmt.Errorf("%s: %w: %w%s", hook.Path, err, errs.Unavailable, output)
}

// Run runs hooks of a stage up to the first that fails.
func Run(ctx context.Context, stage string, list []specs.Hook, state *specs.State) error {
	for i := range list {
		if err := RunOne(ctx, &list[i], state); err != nil {
			return failed(stage, i, err)
		}
	}
	return nil
}

// RunAll runs all hooks of a stage, also after one has failed, and returns all errors.
func RunAll(ctx context.Context, stage string, list []specs.Hook, state *specs.State) error {
	var faults []error
	for i := range list {
		if err := RunOne(ctx, &list[i], state); err != nil {
			faults = append(faults, failed(stage, i, err))
		}
	}
	return errors.Join(faults...)
}

// failed is an error in the form of libcontainer's.
func failed(stage string, index int, err error) error {
	return fmt.Errorf("error running %s hook #%d: %w", stage, index, err)
}

// outputTimeout bounds the wait for the end of a hook's output: a process that it has left behind may have it open.
const outputTimeout = time.Second

func command(ctx context.Context, hook *specs.Hook, input []byte, output *tail) *exec.Cmd {
	cmd := exec.CommandContext(ctx, hook.Path)
	if len(hook.Args) > 0 {
		cmd.Args = hook.Args
	}
	// Nothing of berth's own environment is for hooks.
	cmd.Env = hook.Env
	if len(hook.Env) == 0 {
		cmd.Env = []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), "HOME=/"}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), output, output
	// The hook ends with this process: a successor repeats or undoes what the hook is for.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputTimeout
	return cmd
}

// run runs a command. Output that a process left behind keeps open is no error, and neither is an input that the
// hook does not read.
func run(cmd *exec.Cmd) error {
	// The kernel sends the signal of the parent's death when this thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := sysproc.ResetTimerSlack(); err != nil {
		return err
	}
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return errs.OfFork(err)
}

// maxOutput is how many bytes of a hook's output an error has.
const maxOutput = 2048

// tail is the end of an output.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - maxOutput; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

// String is the end of an error: "" for no output.
func (t *tail) String() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.data), "?"))
	if text == "" {
		return ""
	}
	return ", output: " + text
}
