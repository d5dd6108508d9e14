package ocicommand

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"sync"
	"time"
)

// helpTimeout bounds `exec --help`.
const helpTimeout = 5 * time.Second

// abilities are what programs can do, by their files.
type abilities struct {
	mu    sync.Mutex
	known map[executableFile]groups
}

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
	knows, known := a.known[file]
	a.mu.Unlock()
	if known {
		return knows
	}
	ctx, stop := context.WithTimeout(ctx, helpTimeout)
	defer stop()
	cmd := exec.CommandContext(ctx, r.program.Path, "exec", "--help")
	cmd.Env, cmd.WaitDelay = environment(), outputTimeout
	help, err := cmd.Output()
	if err != nil {
		return groups{}
	}
	knows = groups{any: bytes.Contains(help, []byte("--cgroup")), controllers: bytes.Contains(help, []byte("<controller>"))}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[executableFile]groups{}
	}
	a.known[file] = knows
	return knows
}
