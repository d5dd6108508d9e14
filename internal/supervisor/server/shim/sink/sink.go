// Package sink is the process to which all shims report their events. It outlives the supervisor, as the shims do: a
// shim that cannot report an event may end, and its pod with it (gVisor's does). berth finds out by itself what the events
// say, so the sink only answers them. It also holds connections to shims; see Hold.
package sink

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Role is the first argument of the program berth-supervisor as a sink. The second one is the directory of its files.
const Role = "shim-events"

// The files of a sink.
const (
	SocketName = "events"
	// LockName is the file of the lock that a sink holds as long as it lives. It is taken before the socket is made.
	LockName = "events.lock"
)

// Run is the main function of a sink. It returns nil when there is another one.
func Run(dir string) error {
	signal.Ignore(syscall.SIGHUP)
	lock, _, err := sysfd.TryLock(filepath.Join(dir, LockName))
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	holds, err := listen(filepath.Join(dir, HoldName))
	if err != nil {
		return err
	}
	go serveHolds(holds)
	listener, err := listen(filepath.Join(dir, SocketName)) // the last one: the supervisor waits for it
	if err != nil {
		return err
	}
	taskapi.ServeEvents(listener)
	return nil
}

// listen makes a socket in the place of a predecessor's.
func listen(path string) (net.Listener, error) {
	if err := errs.IgnoreNotExist(os.Remove(path)); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path) //nolint:noctx // it returns at once
	if err != nil {
		return nil, fmt.Errorf("cannot listen for shims: %w", err)
	}
	return listener, nil
}
