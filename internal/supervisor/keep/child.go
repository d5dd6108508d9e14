package keep

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// child is a running supervisor.
type child struct {
	pid     int
	started time.Time
	ready   bool
	conn    *net.UnixConn
	// requests is closed when the connection has ended, and nil when that was handled.
	requests chan request
	// gone is closed when requests are not received any more.
	gone chan struct{}
}

// The supervisor finds its end of the socket pair here.
const (
	childSocketEnv = "BERTH_KEEPER_FD"
	childSocketFD  = 3
)

// Back-off: an end counts as a failure when the supervisor never got ready, or
// lived less than shortLife. The first freeFailures in a row cost nothing. One that
// got ready has adopted its containers: the wait after it is shorter.
const (
	shortLife    = 250 * time.Millisecond
	freeFailures = 3
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
	readyPause   = 200 * time.Millisecond
)

func backOff(failures int, wasReady bool) time.Duration {
	if failures <= freeFailures {
		return 0
	}
	longest := longestPause
	if wasReady {
		longest = readyPause
	}
	return min(firstPause<<min(failures-freeFailures-1, 10), longest)
}

// start runs a supervisor from the binary that is on disk now. It tries again later when that
// fails.
func (k *keeper) start() {
	c, err := k.fork()
	if err != nil {
		k.log.Error("cannot start the supervisor", "error", err)
		k.failed(err.Error(), false)
		return
	}
	k.child = c
	k.status.Supervisor, k.status.Ready, k.status.NextStart = c.pid, false, nil
	k.publish()
	go c.read()
}

func (k *keeper) fork() (*child, error) {
	conn, theirs, err := sysfd.SocketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot start the supervisor: %w", err)
	}
	defer null.Close()
	pid, err := syscall.ForkExec(k.opts.Binary, append([]string{k.opts.Binary}, k.opts.Args...), &syscall.ProcAttr{
		Env:   append(cleanEnvironment(), childSocketEnv+"="+strconv.Itoa(childSocketFD)),
		Files: []uintptr{null.Fd(), 1, 2, theirs.Fd()},
	})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot start the supervisor %s: %w", k.opts.Binary, err)
	}
	return &child{pid: pid, started: time.Now(), conn: conn, requests: make(chan request), gone: make(chan struct{})}, nil
}

// incoming returns the channel of requests; nil, which blocks, without a child.
func (c *child) incoming() <-chan request {
	if c == nil {
		return nil
	}
	return c.requests
}

// signalChild signals by pid: only the keeper reaps, so the pid is not reused before childEnded.
func (k *keeper) signalChild(sig syscall.Signal) {
	if err := syscall.Kill(k.child.pid, sig); err != nil {
		k.log.Error("cannot send the supervisor a signal", "pid", k.child.pid, "signal", sig.String(), "error", err)
	}
}

// childEnded handles what the supervisor has left in its socket, then starts the next one or
// ends the keeper.
func (k *keeper) childEnded(status syscall.WaitStatus) {
	c := k.child
	k.child, k.kill = nil, nil
	k.drain(c)
	k.status.Supervisor, k.status.Ready, k.status.LastEnd = 0, false, describe(status)
	switch {
	case k.stopping:
		return
	case k.upgrade.replacing():
		k.finishUpgrade(nil)
		k.again(0)
	case k.opts.ExitWhenIdle && status.Exited() && status.ExitStatus() == 0:
		k.log.Info("the supervisor has nothing left to do; ending with it")
		k.stopping, k.idle = true, true
		k.abandonUpgrade()
	case c.ready && time.Since(c.started) >= shortLife:
		k.log.Error("the supervisor ended; starting it again", "pid", c.pid, "end", describe(status))
		k.failures = 0
		k.again(0)
	default:
		k.log.Error("the supervisor ended early; starting it again", "pid", c.pid, "end", describe(status), "ready", c.ready)
		k.failed(describe(status), c.ready)
	}
}

func (k *keeper) failed(why string, wasReady bool) {
	k.failures++
	k.status.LastEnd = why
	k.again(backOff(k.failures, wasReady))
}

// again starts the next supervisor after a pause.
func (k *keeper) again(after time.Duration) {
	k.status.Restarts++
	if after == 0 {
		k.start()
		return
	}
	next := time.Now().Add(after)
	k.status.NextStart = &next
	k.restart = time.After(after)
	k.publish()
}

// drain serves the requests that a dead supervisor sent: the keeper holds the descriptors
// of its Hold requests before its successor requests them. The end of the connection
// follows its death. A leaked descriptor of the connection must not delay the keeper.
func (k *keeper) drain(c *child) {
	const patience = time.Second
	timeout := time.After(patience)
	defer c.conn.Close()
	defer close(c.gone)
	for c.requests != nil {
		select {
		case req, ok := <-c.requests:
			if !ok {
				return
			}
			k.serve(c, req)
		case <-timeout:
			k.log.Warn("the supervisor's socket stayed open after its end")
			return
		}
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}

// cleanEnvironment is this process's environment without the variables that name descriptors.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool {
		return strings.HasPrefix(pair, childSocketEnv+"=") || strings.HasPrefix(pair, inheritEnv+"=")
	})
}
