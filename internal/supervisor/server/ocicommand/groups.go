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
	known map[executableFile]bool
}

// executableFile identifies a version of a program.
type executableFile struct {
	path    string
	changed time.Time
	size    int64
}

// knowsGroups reports whether the program can start an exec in a cgroup of its own: its help says so.
func (r *Runtime) knowsGroups(ctx context.Context) bool {
	info, err := os.Stat(r.program.Path)
	if err != nil {
		return false
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
		return false
	}
	knows = bytes.Contains(help, []byte("--cgroup"))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[executableFile]bool{}
	}
	a.known[file] = knows
	return knows
}
