package ociruntime

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// An init waits until the container is started: it opens the FIFO below, which its
// container's state directory has, to write one byte, executes the program once somebody
// reads, and bears initName until then. The FIFO is removed when the program runs.

// initName is the name (comm) of an init that has not executed the program.
const initName = "runc:[2:INIT]"

// fifo is the path of the container's FIFO.
func (r *Runtime) fifo(id string) string { return filepath.Join(r.root, id, "exec.fifo") }

// execPatience bounds the wait for an init that has said that it goes on: it has
// two system calls to make. A program may also bear the init's name.
const execPatience = time.Second

// awaitExecuted returns when the init is the user's program, or has ended. A
// signal that came before would hit libcontainer's init, which ends of it with a
// code of its own, or be lost.
func awaitExecuted(ctx context.Context, s *Starting) {
	pid, err := sysproc.PidfdPid(s.Pidfd)
	if err != nil {
		return // it has ended
	}
	ctx, stop := context.WithTimeout(ctx, execPatience)
	defer stop()
	for {
		if !isInit(pid) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.Ended:
			return
		case <-time.After(50 * time.Microsecond):
		}
	}
}

func isInit(pid int) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.TrimSpace(string(name)) == initName
}

// NeverExecuted reports whether a process that has ended, and is not reaped, ended as
// libcontainer's init: the kernel could not execute the program that was found. Nobody
// is told of that otherwise: the init has closed all ways by then.
func NeverExecuted(pid int) bool { return isInit(pid) }
