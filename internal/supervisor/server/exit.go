package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	// killTimeout bounds the wait for killed processes to be gone.
	killTimeout = 20 * time.Second
	// drainTimeout is how long a hung log may hold up an exit.
	drainTimeout = 20 * time.Second
	// askAgain is how long to ask for a status that is on its way from one
	// teller to the next.
	askAgain = 2 * time.Second
	// unknownCode is what an exit has whose code nobody knows.
	unknownCode = 255
	// killedCode is that of SIGKILL, which is what the OOM killer sends.
	killedCode = 128 + int32(syscall.SIGKILL)
)

// watchGuarded is watch, of whose faults the other containers hear nothing. What it did
// not do the next supervisor does.
func (c *container) watchGuarded() { errs.Protect("watch of container "+c.id, c.watch) }

// watch waits for the init's end and tells it. The order is: status seen, rest
// of the cgroup dead, log complete, exit recorded, reaped, told. Killed after any
// of them, a successor begins again and comes to the same.
func (c *container) watch() {
	c.mu.Lock()
	pidfd := c.pidfd
	c.mu.Unlock()
	if pidfd != nil {
		if err := sysproc.AwaitExit(c.server.stopping, pidfd); err != nil {
			if c.server.stopping.Err() == nil {
				c.server.log.Error("a container is not watched any more", "container", c.id, "error", err)
			}
			return
		}
	}
	close(c.ended)
	c.finish(pidfd)
}

func (c *container) finish(pidfd *os.File) {
	c.mu.Lock()
	start := c.starting
	c.mu.Unlock()
	if start != nil {
		<-start
	}
	rec := c.snapshot()
	exit := c.status(pidfd, rec.Init)
	exit.ID = c.id
	c.endRest(&rec)
	exit.OOMKilled = c.oomKilled(&rec, &exit)
	if rec = c.snapshot(); rec.Stage != running {
		exit.StartFailed = true
		if exit.Message == "" {
			exit.Message = "the init ended before the program was started"
		}
	}
	complete := c.completeLog(&exit)
	if c.server.stopping.Err() != nil {
		return // a successor begins again
	}
	if err := c.update(func(r *record) { r.Stage, r.Exit, r.LogIncomplete = exited, &exit, !complete }); err != nil {
		c.server.log.Error("an exit is not recorded", "container", c.id, "error", err)
		c.mu.Lock()
		c.rec.Stage, c.rec.Exit = exited, &exit // told, though a successor will have to ask again
		c.mu.Unlock()
	}
	c.reap(pidfd, rec.Init)
	if complete {
		c.letGo()
	}
	close(c.exited)
	c.server.exits.publish(exit)
}

// oomKilled asks the cgroup's counter. systemd removes it with the cgroup, often
// before it can be read: then the kernel's log has the last word on the init.
func (c *container) oomKilled(rec *record, exit *supervisor.Exit) bool {
	if kills, err := rec.Cgroups.OOMKills(); err == nil && kills > rec.OOMKills || c.server.oom.Saw(c.id) {
		return true
	}
	if exit.Code != killedCode || rec.Init == nil || rec.Cgroups.Exist() {
		return false
	}
	killed, err := sysproc.OOMKilled(rec.Init.Pid, rec.Init.Start)
	if err != nil {
		c.server.log.Debug("it is not known whether the OOM killer ended a container", "container", c.id, "error", err)
	}
	return killed
}

// letGo closes here, in the keeper and at the clients what an ended container
// needs no more.
func (c *container) letGo() {
	c.server.vault.release(c.key("pipes"))
	c.server.vault.release(c.key("console"))
	c.server.vault.release(c.key("terminal"))
	c.streams.close()
	c.mu.Lock()
	console := c.console
	c.console = nil
	c.mu.Unlock()
	if console != nil {
		console.Close()
	}
	c.server.tellDropped(c.id)
}

// status is how the init ended, from whoever can tell: the kernel, to its
// parent; the kernel, to anybody once it is reaped; the zombie itself; the
// kernel, to who listened; the keeper, who reaped it.
func (c *container) status(pidfd *os.File, init *process) supervisor.Exit {
	exit := supervisor.Exit{At: time.Now().UTC()}
	for deadline := time.Now().Add(askAgain); ; time.Sleep(10 * time.Millisecond) {
		status, at, ok := c.server.askStatus(pidfd, init)
		if ok {
			exit.Code = sysproc.ExitCode(status)
			if !at.IsZero() {
				exit.At = at.UTC()
			}
			return exit
		}
		if time.Now().After(deadline) {
			break
		}
	}
	exit.Code, exit.Unknown = unknownCode, true
	exit.Message = "the exit code is not known: the process ended while neither supervisor nor keeper ran"
	return exit
}

// askStatus asks each teller once. It is for children and adopted ones alike.
func (s *Server) askStatus(pidfd *os.File, init *process) (status syscall.WaitStatus, at time.Time, ok bool) {
	if pidfd != nil {
		status, ok, err := sysproc.PeekChild(pidfd)
		if err == nil && ok {
			return status, at, true
		}
		if status, ok, err = sysproc.PidfdStatus(pidfd); err == nil && ok {
			return status, at, true
		}
	}
	if init == nil {
		return 0, at, false
	}
	proc, err := sysproc.ReadProc(init.Pid)
	if err == nil && proc.Start == init.Start && proc.Zombie() {
		return proc.Status, at, true
	}
	if status, at, ok = s.strangers.status(s.stopping, init); ok {
		return status, at, true
	}
	if s.opts.Keeper == nil {
		return 0, at, false
	}
	ctx, stop := context.WithTimeout(context.Background(), keeperTimeout)
	defer stop()
	told, err := s.opts.Keeper.Exit(ctx, init.Pid, init.Start)
	if err != nil {
		return 0, at, false
	}
	return told.Status, told.At, true
}

// endRest kills what is left of an ended container: with a PID namespace of its
// own nothing is, without one its children live on.
func (c *container) endRest(rec *record) {
	ctx, stop := context.WithTimeout(c.server.stopping, killTimeout)
	defer stop()
	err := rec.Cgroups.Kill(ctx)
	if err == nil || c.server.stopping.Err() != nil {
		return
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		c.server.log.Error("the rest of an ended container is not killed", "container", c.id, "error", err)
		return
	}
	// In an uninterruptible call (a dead NFS server, say): the init is gone, and so
	// is the container to those who wait for it.
	c.server.log.Warn("processes of an ended container do not die", "container", c.id, "error", err)
}

// completeLog sees to it that who learns of the exit finds the log complete. A
// log that hangs does not hold up the exit for ever: false says that the pump
// goes on.
func (c *container) completeLog(exit *supervisor.Exit) bool {
	c.streams.finishTerminal()
	c.mu.Lock()
	pump := c.pump
	c.mu.Unlock()
	if pump == nil {
		return true
	}
	ctx, stop := context.WithTimeout(c.server.stopping, drainTimeout)
	defer stop()
	err := pump.Drain(ctx)
	if err == nil {
		pump.Close()
		return true
	}
	if c.server.stopping.Err() == nil {
		c.server.log.Warn("an exit is told before the log is complete", "container", c.id, "error", err)
		exit.Message = joinText(exit.Message, fmt.Sprintf("the log is not complete: %v", err))
	}
	return false
}

func joinText(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// reap frees the zombie, when it is ours, and what was held for its sake.
func (c *container) reap(pidfd *os.File, init *process) {
	if pidfd != nil {
		c.server.reapChild(pidfd, "container", c.id)
	}
	c.server.vault.release(c.key("pidfd"))
	if init == nil {
		return
	}
	c.server.strangers.forget(init)
	if c.server.opts.Keeper == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), keeperTimeout)
	defer stop()
	if err := c.server.opts.Keeper.Forget(ctx, init.Pid, init.Start); err != nil {
		c.server.log.Debug("the keeper keeps an exit", "container", c.id, "error", err)
	}
}

// exits tells every listener of exits. A listener must not wait.
type exits struct {
	mu        sync.Mutex
	last      int
	listeners map[int]func(supervisor.Exit)
}

// listen calls tell with each exit from now on, until stop is called.
func (e *exits) listen(tell func(supervisor.Exit)) (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listeners == nil {
		e.listeners = make(map[int]func(supervisor.Exit))
	}
	e.last++
	number := e.last
	e.listeners[number] = tell
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, number)
	}
}

func (e *exits) publish(exit supervisor.Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, tell := range e.listeners {
		tell(exit)
	}
}

// Pauses between two tries to reap a child that a tracer holds.
const (
	reapFirst = 10 * time.Millisecond
	reapLast  = time.Second
)

// reapChild frees the zombie of the child behind pidfd. who describes it, for the log.
//
// A process that was traced when it ended belongs to its tracer first: the kernel shows it
// to its parent when the tracer has waited for it, or has ended. Until then the zombie keeps
// the init of its PID namespace from ending. So it is tried again, in the background.
func (s *Server) reapChild(pidfd *os.File, who ...any) {
	if done := s.tryReap(pidfd, who); done {
		return
	}
	own, err := sysfd.Duplicate(pidfd)
	if err != nil {
		s.log.Warn("a traced child is not reaped", append(who, "error", err)...)
		return
	}
	go errs.Protect("reaping of a traced child", func() {
		defer own.Close()
		for pause := reapFirst; ; pause = min(2*pause, reapLast) {
			select {
			case <-s.stopping.Done():
				return // the keeper reaps it
			case <-time.After(pause):
			}
			if s.tryReap(own, who) {
				return
			}
		}
	})
}

// tryReap reports whether there is nothing more to do.
func (s *Server) tryReap(pidfd *os.File, who []any) (done bool) {
	_, ok, err := sysproc.ReapChild(pidfd)
	if errs.IgnoreNotFound(err) != nil {
		s.log.Warn("an ended child is not reaped", append(who, "error", err)...)
	}
	return ok || err != nil
}
