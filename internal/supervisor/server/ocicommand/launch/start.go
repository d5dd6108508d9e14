package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

const (
	// unwatched is how long the program may run when its supervisor has ended.
	unwatched = time.Minute
	// launcherTimeout bounds the wait for a launcher that kills what it has started.
	launcherTimeout = 10 * time.Second
)

// Check returns an error of kind Unavailable when the program of a handler cannot be run, or when its file system does not
// answer in time, and ctx's when that ends first.
func Check(ctx context.Context, probes *probe.Pool, handler, path string) error {
	info, err := probe.Ask(ctx, probes, "look at the program "+path, func() (os.FileInfo, error) { return os.Stat(path) })
	switch {
	case err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0:
		return nil
	case err == nil:
		return fmt.Errorf("unable to get OCI runtime: handler %q: %s is not an executable file: %w", handler, path, errs.Unavailable)
	case ctx.Err() != nil, errs.Kind(err) != nil: // the file system has not answered
		return fmt.Errorf("unable to get OCI runtime: handler %q: %w", handler, err)
	}
	return fmt.Errorf("unable to get OCI runtime: handler %q: %w: %w", handler, err, errs.Unavailable)
}

// Command is one run of a program by a launcher.
type Command struct {
	// Order is what runs. Start sets its descriptors, and its Timeout: a little after the deadline of the
	// context.
	Order
	// Stdin, Stdout and Stderr are the program's; nil is /dev/null.
	Stdin, Stdout, Stderr *os.File
	// Pidfd is a socket that gets a pidfd of the process that the program leaves, Console one that gets
	// the master of its terminal; nil for none.
	Pidfd, Console *os.File
	// Env is the program's environment.
	Env []string
}

// Begun is what the program has left.
type Begun struct {
	// Result has what the launcher has reported.
	Result
	// Release lets the launcher end. Until then the process is not reaped. Abandon kills what the program
	// has started. One of them must be called.
	Release, Abandon func()
}

// Failure is the error of a program that has not done its work. Its text is what the launcher reports.
type Failure struct{ text string }

func (f *Failure) Error() string { return f.text }

// ErrLost is the error of a launcher that was killed. The program is killed with it. What the program has started, and
// whether it has done its work, is not known. Kind Unavailable.
var ErrLost = fmt.Errorf("the launcher ended without a result: %w", errs.Unavailable)

// Start runs a program, and returns when it has ended with success. When ctx ends first, Start kills the
// program and all that it has started, and returns the context's error. The error is a *Failure
// when the program fails; then nothing of it is left, either. It is ErrLost when the launcher is
// killed, and has kind Unavailable when another process has the lock.
func Start(ctx context.Context, c *Command) (*Begun, error) {
	order := c.Order
	order.Timeout = unwatched
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
		return ControlFD + len(extra) - 1
	}
	order.PidfdFD, order.ConsoleFD = add(c.Pidfd), add(c.Console)
	text, err := json.Marshal(order)
	// A launcher that was killed would leave what it has started: it ends by itself.
	cmd := exec.Command("/proc/self/exe", Role, string(text)) //nolint:noctx // see above
	cmd.Env, cmd.ExtraFiles = c.Env, extra
	for _, each := range []struct {
		from *os.File
		to   func(*os.File)
	}{
		{c.Stdin, func(f *os.File) { cmd.Stdin = f }},
		{c.Stdout, func(f *os.File) { cmd.Stdout = f }},
		{c.Stderr, func(f *os.File) { cmd.Stderr = f }},
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
		return nil, fmt.Errorf("cannot start a launcher: %w", err)
	}
	release := sync.OnceFunc(func() {
		_, _ = conn.Write([]byte{Released}) // it may have ended
		conn.Close()
		_ = cmd.Wait() // it has reported all that it knows
	})
	results := make(chan Result, 1)
	go func() {
		var result Result
		if err := json.NewDecoder(conn).Decode(&result); err != nil {
			result = Result{lost: true}
		}
		results <- result
	}()
	abandon := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
		conn.Close()
	}
	result, late := awaitResult(ctx, cmd, results)
	switch {
	case late != nil:
		abandon()
		return nil, late
	case result.lost:
		release()
		return nil, ErrLost
	case !result.Done:
		release()
		if result.Busy {
			return nil, fmt.Errorf("%s: %w", result.Error, errs.Unavailable)
		}
		return nil, &Failure{result.Error}
	}
	return &Begun{result, release, abandon}, nil
}

// awaitResult returns what the launcher reports. When ctx ends first, late is its error, and everything
// that the launcher has started is killed.
func awaitResult(ctx context.Context, cmd *exec.Cmd, results <-chan Result) (result Result, late error) {
	select {
	case result := <-results:
		return result, nil
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case result = <-results:
	case <-time.After(launcherTimeout):
		_ = cmd.Process.Kill()
	}
	return result, ctx.Err()
}
