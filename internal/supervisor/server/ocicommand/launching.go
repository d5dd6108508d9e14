package ocicommand

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// launching is one run of the program that leaves a process behind.
type launching struct {
	stage string
	// args are the program and its arguments.
	args         []string
	dir, pidFile string
	log          string
	io           *ociruntime.StdIO
	// pidfd is a socket that gets a pidfd of the process; nil for none.
	pidfd       *os.File
	persist     bool
	oomScoreAdj int
}

// begun is a process that the program has left.
type begun struct {
	pid int
	// release lets the launcher end. Until then the process is not reaped.
	release func()
}

const (
	// unwatched is how long the program may run when its supervisor has ended.
	unwatched = time.Minute
	// killTimeout bounds the wait for a launcher that kills what it has started.
	killTimeout = 10 * time.Second
)

func (r *Runtime) launch(ctx context.Context, l *launching) (*begun, error) {
	order := launch.Order{
		Args: l.args, Dir: l.dir, PidFile: l.pidFile, Persist: l.persist, OOMScoreAdj: l.oomScoreAdj, Timeout: unwatched,
	}
	if deadline, ok := ctx.Deadline(); ok {
		order.Timeout = time.Until(deadline) + time.Second // ctx ends first
	}
	conn, theirs, err := sysfd.SocketPair()
	if err != nil {
		return nil, err
	}
	extra := []*os.File{theirs}
	add := func(f *os.File) int {
		if f == nil {
			return 0
		}
		extra = append(extra, f)
		return launch.ControlFD + len(extra) - 1
	}
	order.PidfdFD, order.ConsoleFD = add(l.pidfd), add(l.io.Console)
	text, err := json.Marshal(order)
	// A launcher that was killed would leave what it has started: it ends by itself.
	cmd := exec.Command("/proc/self/exe", launch.Role, string(text)) //nolint:noctx // see above
	cmd.Env, cmd.ExtraFiles = environment(), extra
	for _, each := range []struct {
		from *os.File
		to   func(*os.File)
	}{
		{l.io.Stdin, func(f *os.File) { cmd.Stdin = f }},
		{l.io.Stdout, func(f *os.File) { cmd.Stdout = f }},
		{l.io.Stderr, func(f *os.File) { cmd.Stderr = f }},
	} {
		if each.from != nil { // a nil *os.File in an interface is not nil
			each.to(each.from)
		}
	}
	if err == nil {
		err = cmd.Start()
	}
	theirs.Close()
	if err != nil {
		conn.Close()
		return nil, r.fault(l.stage, fmt.Errorf("cannot start a launcher: %w", err))
	}
	release := sync.OnceFunc(func() {
		conn.Close()
		_ = cmd.Wait() // it has reported all that it knows
	})
	results := make(chan launch.Result, 1)
	go func() {
		var result launch.Result
		if err := json.NewDecoder(conn).Decode(&result); err != nil {
			result.Error = "the launcher ended without a result"
		}
		results <- result
	}()
	result, late := awaitResult(ctx, cmd, results)
	if result.Pid > 0 && late == nil {
		return &begun{pid: result.Pid, release: release}, nil
	}
	defer release()
	if late != nil {
		if result.Pid > 0 { // it has begun at the last moment
			_ = syscall.Kill(result.Pid, syscall.SIGKILL) // not reaped before the release
		}
		return nil, r.fault(l.stage, r.cause(ctx))
	}
	return nil, r.fault(l.stage, errors.New(cmp.Or(lastError(l.log), result.Error)))
}

// awaitResult returns what the launcher reports. When ctx ends first, late is its error, and everything
// that the launcher has started is killed.
func awaitResult(ctx context.Context, cmd *exec.Cmd, results <-chan launch.Result) (result launch.Result, late error) {
	select {
	case result := <-results:
		return result, nil
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case result = <-results:
	case <-time.After(killTimeout):
		_ = cmd.Process.Kill()
	}
	return result, ctx.Err()
}

// scoreOf returns the oom_score_adj of the process of a pidfd, 0 when it is not known.
func scoreOf(pidfd *os.File) int {
	if pidfd == nil {
		return 0
	}
	pid, err := sysproc.PidfdPid(pidfd)
	if err != nil {
		return 0
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		return 0
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return score
}
