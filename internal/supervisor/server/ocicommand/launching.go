package ocicommand

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
)

// launching is one run of the program.
type launching struct {
	stage string
	// args are the program and its arguments.
	args []string
	dir  string
	// pidFile is where the program writes the pid of the process that it leaves, "" when it leaves none.
	pidFile string
	log     string
	io      *ociruntime.StdIO
	// pidfd is a socket that gets a pidfd of the process; nil for none.
	pidfd   *os.File
	persist bool
	// lock is the path of a lock that is held until release, "" for none.
	lock string
	// stderr returns what the program has written to it, for errors; nil when the container gets it.
	stderr      func() []byte
	oomScoreAdj *int
	// env is the environment of the program, nil for that of all programs.
	env []string
	// apart gives the program a mount namespace, and a session keyring of this name, of its own; "" for neither.
	apart string
	// covers are directories that the program finds over others, by those below; nil for none.
	covers map[string]string
}

// unwatched is how long a start may run when its caller has no deadline.
const unwatched = time.Minute

// launch runs the program. Its errors have handler, program and stage.
func (r *Runtime) launch(ctx context.Context, l *launching) (*launch.Begun, error) {
	env := l.env
	if env == nil {
		env = environment()
	}
	begun, err := launch.Start(ctx, &launch.Command{
		Order: launch.Order{
			Args: l.args, Dir: l.dir, PidFile: l.pidFile, Lock: l.lock, Persist: l.persist, OOMScoreAdj: l.oomScoreAdj,
			Apart: l.apart, Covers: l.covers,
		},
		Stdin: l.io.Stdin, Stdout: l.io.Stdout, Stderr: l.io.Stderr, Console: l.io.Console, Pidfd: l.pidfd,
		Env: env,
	})
	var failure *launch.Failure
	switch {
	case err == nil:
		return begun, nil
	case errors.As(err, &failure):
		said := ""
		if l.stderr != nil {
			said = lastLine(l.stderr())
		}
		return nil, r.fault(l.stage, errors.New(cmp.Or(lastError(l.log), said, failure.Error())))
	case ctx.Err() != nil:
		return nil, r.fault(l.stage, r.cause(ctx))
	}
	return nil, r.fault(l.stage, err)
}
