// Package command runs the command line tool of a container engine. It calls and cancels tools, and
// quotes them in errors. It does not know what they do.
package command

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/cluster/redact"
)

// grace is how long a tool may take to clean up after SIGTERM.
const grace = 10 * time.Second

// Call is one call of a tool.
type Call struct {
	// Args are those after the tool's name.
	Args []string
	// Stdin is nil for none.
	Stdin io.Reader
	// Stdout and Stderr get what the tool writes while it runs. nil discards it. In any case an
	// error quotes the last lines of standard error, or else of standard output.
	Stdout, Stderr io.Writer
	// Raw: standard output is binary, or has secrets. Errors quote only standard error.
	Raw bool
	// Guest: the output comes from a program in a container, so it says nothing about errors of the
	// engine.
	Guest bool
}

// Runner runs calls. It returns nil when the tool ended with status 0, an *Error when
// it ran and failed, and an error with the context's cause when that ended first.
// It must be safe for concurrent use.
type Runner interface {
	Run(ctx context.Context, c Call) error
}

// Tool is a program of this host, and a Runner.
type Tool struct {
	// Name is the name of the program, which is looked up in PATH.
	Name string
	// Trace receives each call before it is made; nil for none.
	Trace func(tool string, args []string)
}

// Run runs the program in a process group of its own: Ctrl-C in a terminal reaches only berth,
// which ends the program in order.
func (t Tool) Run(ctx context.Context, c Call) error {
	if t.Trace != nil {
		t.Trace(t.Name, c.Args)
	}
	var out, errs Tail
	cmd := exec.CommandContext(ctx, t.Name, c.Args...)
	cmd.Stdin = c.Stdin
	cmd.Stdout, cmd.Stderr = out.Tee(c.Stdout), errs.Tee(c.Stderr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return Failed(t.Name, c, c.Quote(&out, &errs), err)
}

// Quote returns the last lines of a call's standard output and standard error that an error quotes.
func (c Call) Quote(stdout, stderr *Tail) []string {
	if lines := stderr.Lines(); len(lines) > 0 || c.Raw {
		return lines
	}
	return stdout.Lines()
}

// Output is what a call writes to standard output.
func Output(ctx context.Context, r Runner, args ...string) ([]byte, error) {
	var out bytes.Buffer
	err := r.Run(ctx, Call{Args: args, Stdout: &out})
	return out.Bytes(), err
}

// Words is Output, split into words, for lists of names.
func Words(ctx context.Context, r Runner, args ...string) ([]string, error) {
	out, err := Output(ctx, r, args...)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(out)), nil
}

// Found reports whether a program of the name is in PATH.
func Found(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// Tail keeps the end of the text that is written to it, for errors. The zero value is ready.
type Tail struct{ kept []byte }

const tailSize = 4096

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*tailSize {
		t.kept = append([]byte(nil), t.kept[len(t.kept)-tailSize:]...)
	}
	return len(p), nil
}

// Tee writes to w, unless that is nil, and to the tail.
func (t *Tail) Tee(w io.Writer) io.Writer {
	if w == nil {
		return t
	}
	return io.MultiWriter(w, t)
}

// Lines are the last lines that are not empty, without secrets.
func (t *Tail) Lines() []string {
	var all []string
	for line := range strings.Lines(string(t.kept)) {
		if line = strings.TrimSpace(line); line != "" && line != "[]" {
			all = append(all, line)
		}
	}
	all = all[max(0, len(all)-quoted):]
	for i := range all {
		all[i] = redact.Text(all[i]) // tools quote their proxies
	}
	return all
}

// Host is the environment of this process as a map.
func Host() map[string]string {
	env := map[string]string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return env
}
