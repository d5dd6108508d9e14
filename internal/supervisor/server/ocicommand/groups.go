package ocicommand

import (
	"bytes"
	"context"
	"os"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
)

const (
	// helpTimeout bounds `exec --help`.
	helpTimeout = 5 * time.Second
	// helpRetry is how long a failure of it holds: a busy host may be the cause.
	helpRetry = time.Minute
)

// abilities are what programs can do, by their files.
type abilities struct {
	mu    sync.Mutex
	known map[executableFile]helped
}

// helped is what the help of a program says.
type helped struct {
	groups groups
	// retry is when a program whose help failed is asked again, the zero value for never.
	retry time.Time
}

func (h helped) holds() bool { return h.retry.IsZero() || time.Now().Before(h.retry) }

// groups is how a program can start an exec in a cgroup below that of the container.
type groups struct {
	// any is true when it can at all, controllers when the option takes the name of a controller. The
	// hierarchies of cgroup v1 need that.
	any, controllers bool
}

// all reports whether it can start an exec in the cgroups of these controllers.
func (g groups) all(relative map[string]string) bool {
	for controller := range relative {
		if controller != "" && !g.controllers {
			return false
		}
	}
	return g.any
}

// executableFile identifies a version of a program.
type executableFile struct {
	path    string
	changed time.Time
	size    int64
}

// groups reports what the help of the program's exec says about cgroups.
func (r *Runtime) groups(ctx context.Context) groups {
	info, err := os.Stat(r.program.Path)
	if err != nil {
		return groups{}
	}
	file := executableFile{r.program.Path, info.ModTime(), info.Size()}
	a := &r.all.abilities
	a.mu.Lock()
	last, known := a.known[file]
	a.mu.Unlock()
	if known && last.holds() {
		return last.groups
	}
	help, err := execHelp(ctx, r.program.Path)
	answer := helped{groups: groups{any: bytes.Contains(help, []byte("--cgroup")), controllers: bytes.Contains(help, []byte("<controller>"))}}
	switch {
	case err == nil:
	case ctx.Err() != nil: // the end of an exec says nothing of the program
		return groups{}
	default:
		answer = helped{retry: time.Now().Add(helpRetry)}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[executableFile]helped{}
	}
	a.known[file] = answer
	return answer.groups
}

// execHelp returns the help of a program's exec. A program that hangs is killed with all that it has started.
func execHelp(ctx context.Context, program string) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, helpTimeout)
	defer stop()
	help, err := launch.NewOutput()
	if err != nil {
		return nil, err
	}
	begun, err := launch.Start(ctx, &launch.Command{
		Order: launch.Order{Args: []string{program, "exec", "--help"}, Dir: "/"}, Stdout: help.Writer, Env: environment(),
	})
	if err == nil {
		begun.Release()
	}
	return help.End(), err
}
