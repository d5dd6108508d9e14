package shim

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/shim/sink"
)

// programRun is one run of a shim's program.
type programRun struct {
	args  []string
	dir   string
	input []byte
	// daemon is true when it leaves the shim of a pod, whose directory is dir.
	daemon bool
	// lock is the path of a lock that is held until the launcher has ended, "" for none.
	lock string
	// persist lets it complete its work when the supervisor ends before.
	persist bool
}

// arguments returns the program and its arguments for an action on a container, or on a pod.
func (r *Runtime) arguments(id string, action ...string) []string {
	events := filepath.Join(r.all.dir, sink.SocketName)
	return append([]string{r.handler.Path, "-namespace", namespace, "-address", events, "-publish-binary", "/bin/true", "-id", id}, action...)
}

// markOf is a variable in the environment of the shim of a pod, which passes it on to the processes that it starts.
func markOf(podDir string) string { return "BERTH_SHIM=" + podDir }

// environment is that of the program and of the shim.
func (r *Runtime) environment(run *programRun) []string {
	events := filepath.Join(r.all.dir, sink.SocketName)
	environment := []string{
		"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), "HOME=/",
		"TTRPC_ADDRESS=" + events, "GRPC_ADDRESS=" + events, "NAMESPACE=" + namespace, "MAX_SHIM_VERSION=2", "GOMAXPROCS=2",
	}
	if run.daemon {
		environment = append(environment, markOf(run.dir))
	}
	return environment
}

// runProgram runs the program, and returns its output, and what it has left when it is a daemon's. When it fails or ctx ends first,
// it and all that it has started are killed.
func (r *Runtime) runProgram(ctx context.Context, run *programRun) (*launch.Begun, []byte, error) {
	if err := r.Check(ctx); err != nil {
		return nil, nil, err
	}
	input, err := inputFile(run)
	if err != nil {
		return nil, nil, err
	}
	defer input.Close()
	stdout, err := launch.NewOutput()
	if err != nil {
		return nil, nil, err
	}
	stderr, err := launch.NewOutput()
	if err != nil {
		stdout.End()
		return nil, nil, err
	}
	begun, err := launch.Start(ctx, &launch.Command{
		Order: launch.Order{Args: run.args, Dir: run.dir, Daemon: run.daemon, Lock: run.lock, Persist: run.persist},
		Stdin: input, Stdout: stdout.Writer, Stderr: stderr.Writer, Env: r.environment(run),
	})
	if err == nil && !run.daemon {
		begun.Release() // the launcher has the output open until then
	}
	output, said := stdout.End(), lastLine(stderr.End())
	var failure *launch.Failure
	if errors.As(err, &failure) {
		err = errors.New(cmp.Or(said, lastLine(output), failure.Error()))
	}
	return begun, output, err
}

// inputFile is the program's stdin.
func inputFile(run *programRun) (*os.File, error) {
	path := filepath.Join(run.dir, "berth-input")
	if err := os.WriteFile(path, run.input, 0o600); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// maxLine is how long a text of a program may be in an error.
const maxLine = 2048

// lastLine returns the last line of an output that is not empty.
func lastLine(output []byte) string {
	text := strings.TrimSpace(string(output))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if len(text) > maxLine {
		text = text[:maxLine] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
