package ocicommand

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
)

// The stages of a container that errors name.
const (
	stageCreate = "create"
	stageStart  = "start"
	stageState  = "state"
	stageExec   = "exec"
	stageUpdate = "update"
	stageDelete = "delete"
)

const (
	// deleteTimeout bounds `delete`: after that, berth removes the container without the program.
	deleteTimeout = 10 * time.Second
	// stateTimeout bounds `state`.
	stateTimeout = 10 * time.Second
	// maxOutput bounds what is read of a program's log.
	maxOutput = launch.MaxOutput
)

// arguments returns the program and the arguments of a stage: first those for all stages, then args.
func (r *Runtime) arguments(systemd bool, log string, args ...string) []string {
	all := append([]string{r.program.Path}, r.program.Args...)
	all = append(all, "--root", r.program.Root, "--log", log, "--log-format", "json")
	if systemd {
		all = append(all, "--systemd-cgroup")
	}
	return append(all, args...)
}

// environment is that of all programs. Nothing of berth's own is in it: runc passes on LISTEN_FDS and
// NOTIFY_SOCKET.
func environment() []string {
	return []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), "HOME=/"}
}

// run runs the program for one stage of a container, and returns its output. When ctx ends first, it
// kills the program and what that has started. When the supervisor dies first, the program goes on: the launcher of
// a deletion has a lock until its end.
func (r *Runtime) run(ctx context.Context, stage string, systemd bool, id string, args ...string) ([]byte, error) {
	if err := r.Check(ctx); err != nil {
		return nil, err
	}
	stdout, err := launch.NewOutput()
	if err != nil {
		return nil, err
	}
	stderr, err := launch.NewOutput()
	if err != nil {
		stdout.End()
		return nil, err
	}
	f := r.all.files(id)
	log := f.log(stage)
	if err := errs.IgnoreNotExist(os.Remove(log)); err != nil { // of an earlier run
		return nil, err
	}
	lock := ""
	if stage == stageDelete {
		lock = filepath.Join(f.dir, deleteLockName)
	}
	begun, err := r.launch(ctx, &launching{
		stage: stage, args: r.arguments(systemd, log, args...), dir: f.bundle(), log: log, persist: true, lock: lock,
		io: &ociruntime.StdIO{Stdout: stdout.Writer, Stderr: stderr.Writer}, stderr: stderr.End,
	})
	if err == nil {
		begun.Release()
	}
	stderr.End()
	return stdout.End(), err
}

// fault adds handler, program and stage to an error.
func (r *Runtime) fault(stage string, err error) error {
	return fmt.Errorf("handler %q: %s %s: %w", r.program.Name, r.program.Path, stage, err)
}

// cause returns why ctx ended, with a kind.
func (r *Runtime) cause(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("it took too long, and was killed: %w", errs.Deadline)
	}
	return ctx.Err()
}

// lastError returns the last error in a program's log, which has a JSON object in each line; "" when
// there is none.
func lastError(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxOutput {
		if _, err := f.Seek(-maxOutput, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxOutput))
	if err != nil {
		return ""
	}
	last := ""
	for line := range bytes.Lines(data) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg != "" && (entry.Level == "error" || entry.Level == "fatal" || entry.Level == "") {
			last = entry.Msg
		}
	}
	return shorten(last)
}

// lastLine returns the last line of an output that is not empty.
func lastLine(output []byte) string {
	text := strings.TrimSpace(string(output))
	return shorten(text[strings.LastIndexByte(text, '\n')+1:])
}

// maxError is how long the text of a program may be in an error.
const maxError = 2048

func shorten(text string) string {
	if len(text) > maxError {
		text = text[:maxError] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
