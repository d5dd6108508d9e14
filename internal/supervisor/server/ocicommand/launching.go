package ocicommand

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysfd"
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
}

// begun is what the program has left.
type begun struct {
	pid int
	// release lets the launcher end. Until then the process is not reaped. abandon kills what the program
	// has started. One of them must be called.
	release, abandon func()
}

const (
	// unwatched is how long the program may run when its supervisor has ended.
	unwatched = time.Minute
	// killTimeout bounds the wait for a launcher that kills what it has started.
	killTimeout = 10 * time.Second
)

func (r *Runtime) launch(ctx context.Context, l *launching) (*begun, error) {
	order := launch.Order{
		Args: l.args, Dir: l.dir, PidFile: l.pidFile, Lock: l.lock, Persist: l.persist, OOMScoreAdj: l.oomScoreAdj, Timeout: unwatched,
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
		_, _ = conn.Write([]byte{launch.Released}) // it may have ended
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
	abandon := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
		conn.Close()
	}
	result, late := awaitResult(ctx, cmd, results)
	if result.Done && late == nil {
		return &begun{result.Pid, release, abandon}, nil
	}
	if late != nil {
		abandon()
		return nil, r.fault(l.stage, r.cause(ctx))
	}
	release()
	said := ""
	if l.stderr != nil {
		said = lastLine(l.stderr())
	}
	return nil, r.fault(l.stage, errors.New(cmp.Or(lastError(l.log), said, result.Error)))
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
