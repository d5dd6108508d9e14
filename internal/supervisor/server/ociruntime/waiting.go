package ociruntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// An init waits until the container is started: it opens a FIFO in the state directory of its
// container for writing. The open waits for a reader. Then the init writes one byte and executes
// the program. Its name is initName until then. The FIFO is removed when the program runs.

// initName is the name (comm) of an init that has not executed the program.
const initName = "runc:[2:INIT]"

// fifo is the path of the container's FIFO.
func (r *Runtime) fifo(id string) string { return filepath.Join(r.root, id, fifoName) }

// waiting reports whether the container's init waits for the start.
func (r *Runtime) waiting(id string) bool {
	_, err := os.Lstat(r.fifo(id))
	return err == nil
}

// executeTimeout bounds the wait for an init that has written its byte: it makes two more system calls.
// A program may have the init's name, too.
const executeTimeout = time.Second

// awaitExecuted returns when the init has executed the program, or has ended. An earlier signal
// would be lost, or would reach libcontainer's init, which exits with its own code. An init that runs hooks takes
// its time, and fails when a hook does: kind State, or Deadline at the end of ctx.
func awaitExecuted(ctx context.Context, s *Starting) error {
	pid, err := sysproc.PidfdPid(s.Pidfd)
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	pause := time.Millisecond
	if !s.Hooked {
		pause = 50 * time.Microsecond
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, executeTimeout)
		defer stop()
	}
	for {
		if !isInit(pid) {
			return nil
		}
		select {
		case <-ctx.Done():
			if s.Hooked {
				return fmt.Errorf("its startContainer hooks have not ended: %w", cause(ctx))
			}
			return nil
		case <-s.Ended:
			if s.Hooked && NeverExecuted(pid) {
				return fmt.Errorf("a startContainer hook has failed, or the program cannot be executed; the container's log has the error of its init: %w", errs.State)
			}
			return nil
		case <-time.After(pause):
		}
	}
}

func isInit(pid int) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.TrimSpace(string(name)) == initName
}

// NeverExecuted reports whether a process that has ended, and is not reaped, ended as libcontainer's
// init: the kernel could not execute the program that was found. The init cannot report that: it has
// closed its pipe by then.
func NeverExecuted(pid int) bool { return isInit(pid) }
