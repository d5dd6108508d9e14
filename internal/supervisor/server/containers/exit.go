package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/heldfiles"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

const (
	// killTimeout bounds the wait for the end of killed processes.
	killTimeout = 20 * time.Second
	// drainTimeout is how long a log that hangs may delay an exit.
	drainTimeout = 20 * time.Second
	// statusTimeout bounds the wait for the status of an ended process: the keeper may have
	// reaped it and not recorded it yet.
	statusTimeout = 2 * time.Second
	// unknownCode is the code of an exit whose status cannot be found out.
	unknownCode = 255
)

// watch has the end of the init reported. One thread waits for the ends of all containers, except where the
// runtime knows more of an end than the kernel, or when there is no pidfd.
func (c *Container) watch() {
	c.mu.Lock()
	pidfd := c.pidfd
	c.mu.Unlock()
	runtime, err := c.runtime()
	if err != nil {
		c.set.log.Error("cannot continue to watch a container", "container", c.id, "error", err)
		return
	}
	if runtime.Local() && pidfd == nil {
		go errs.Protect("watch of container "+c.id, func() { c.watchUnopened(runtime) })
		return
	}
	if runtime.Local() {
		err := c.set.ends.Add(pidfd, func() {
			errs.Protect("end of container "+c.id, func() { c.end(pidfd, runtime, &ociruntime.Ended{}) })
		})
		if err == nil {
			return
		}
		c.set.log.Debug("cannot watch a container with the others; it has a goroutine of its own", "container", c.id, "error", err)
	}
	go errs.Protect("watch of container "+c.id, func() {
		end, err := runtime.Await(c.set.stopping, &ociruntime.Watched{ContainerID: c.id, Pidfd: pidfd})
		if err == nil {
			c.end(pidfd, runtime, end)
		} else if c.set.stopping.Err() == nil {
			c.set.log.Error("cannot continue to watch a container", "container", c.id, "error", err)
		}
	})
}

// watchUnopened watches an init that adoption could not open, or that has ended.
func (c *Container) watchUnopened(runtime runtime) {
	pidfd, err := c.set.reopen(c.snapshot().Init)
	if err != nil {
		return // this process ends; a successor continues
	}
	if pidfd == nil {
		c.end(nil, runtime, &ociruntime.Ended{})
		return
	}
	c.setPidfd(c.set.stopping, pidfd)
	c.watch()
}

// end reports the end of the init. The steps in their order: find the status, kill the remaining
// processes in the cgroup, complete the log, record the exit, reap the init, report the exit. When this
// process is killed after any step, a successor repeats them all, with the same result. A panic does not
// end the process: then the next supervisor completes the work.
func (c *Container) end(pidfd *os.File, runtime runtime, end *ociruntime.Ended) {
	close(c.ended)
	c.recordExit(pidfd, runtime, end)
}

func (c *Container) recordExit(pidfd *os.File, runtime runtime, end *ociruntime.Ended) {
	c.mu.Lock()
	start := c.starting
	c.mu.Unlock()
	if start != nil {
		<-start
	}
	rec := c.snapshot()
	exit := c.status(pidfd, rec.Init, end)
	exit.ID = c.id
	c.killRemaining(&rec)
	last, err := c.flush(runtime)
	if err != nil && c.set.stopping.Err() == nil {
		c.set.log.Warn("the end of a container's output may be missing", "container", c.id, "error", err)
	}
	if exit.Unknown && last.Known {
		last.Message, last.Shared = end.Message, end.Shared
		exit = c.status(pidfd, rec.Init, last)
		exit.ID = c.id
	}
	exit.OOMKilled = c.oomKilled(&rec)
	if rec = c.snapshot(); rec.Stage != record.Running || !exit.OOMKilled && exit.Code != killedCode && neverExecuted(runtime, rec.Init) {
		exit.StartFailed = true
		if exit.Message == "" {
			exit.Message = "the init ended before the program was executed; the container's log may have the error"
		}
	}
	complete := c.drainLog(&exit)
	if c.set.stopping.Err() != nil {
		return // a successor begins again
	}
	if err := c.update(func(r *record.Container) { r.Stage, r.Exit, r.LogIncomplete = record.Exited, &exit, !complete }); err != nil {
		c.set.log.Error("cannot record an exit", "container", c.id, "error", err)
		c.mu.Lock()
		c.rec.Stage, c.rec.Exit = record.Exited, &exit // reported, though a successor will have to find it out again
		c.mu.Unlock()
	}
	if !end.Shared {
		c.reap(pidfd, rec.Init)
	}
	c.set.held.Release(c.key("pidfd"))
	if complete {
		c.releaseStreams()
	}
	close(c.exited)
	c.set.opts.Clients.Exited(exit)
}

// flush waits for the end of the init's output, and returns what the runtime knows of the end. A runtime that is not local
// then forgets the execs as well, and their exit codes: they are recorded before.
func (c *Container) flush(runtime runtime) (*ociruntime.Ended, error) {
	if !runtime.Local() {
		c.awaitExecs()
	}
	return runtime.Flush(c.set.stopping, &ociruntime.Watched{ContainerID: c.id})
}

// killedCode is the code of a process that SIGKILL has ended. It says more than that the program never ran.
const killedCode = 128 + int32(syscall.SIGKILL)

// neverExecuted reports whether an init ended before it executed the program, although its start succeeded: the
// kernel did not take the program. Runtimes have their inits exit with different codes then, runc 1.1 with 1.
func neverExecuted(runtime runtime, init *record.Process) bool {
	if !runtime.Local() || init == nil {
		return false
	}
	proc, err := sysproc.ReadProc(init.Pid)
	return err == nil && proc.Start == init.Start && ociruntime.NeverExecuted(init.Pid)
}

// oomKilled reports whether the OOM killer has killed a process of the container, by the counter of
// its cgroup. systemd removes a cgroup as soon as it is empty, often before oomKilled has read the
// counter. Then the kernel's log shows whether the OOM killer killed the init or a process of
// the cgroup.
func (c *Container) oomKilled(rec *record.Container) bool {
	if kills, err := rec.Cgroups.OOMKills(); err == nil && kills > rec.OOMKills || c.set.oom.Saw(c.id) {
		return true
	}
	if rec.Init == nil || rec.Cgroups.Exist() {
		return false
	}
	killed, err := sysproc.OOMKilled(rec.Init.Pid, rec.Init.Start, rec.Cgroups.Name())
	if err != nil {
		c.set.log.Debug("cannot find out whether the OOM killer ended a container", "container", c.id, "error", err)
	}
	return killed
}

// releaseStreams closes the streams of an ended container in this process, in the keeper and at the
// clients.
func (c *Container) releaseStreams() {
	c.set.held.Release(c.key("pipes"))
	c.set.held.Release(c.key("console"))
	c.set.held.Release(c.key("terminal"))
	c.streams.Close()
	c.mu.Lock()
	console := c.console
	c.console = nil
	c.mu.Unlock()
	if console != nil {
		console.Close()
	}
	c.set.opts.Clients.Drop(c.id)
}

// status is how the init ended. See readStatus for where it is found, when the runtime does not know it.
func (c *Container) status(pidfd *os.File, init *record.Process, end *ociruntime.Ended) supervisor.Exit {
	exit := supervisor.Exit{At: time.Now().UTC(), Message: end.Message}
	if end.Known {
		exit.Code = end.Code
		if !end.At.IsZero() {
			exit.At = end.At.UTC()
		}
		return exit
	}
	for deadline := time.Now().Add(statusTimeout); !end.Shared; time.Sleep(10 * time.Millisecond) {
		status, at, ok := c.set.readStatus(pidfd, init)
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
	if exit.Message == "" {
		exit.Message = "the exit code is not known: the process ended while neither supervisor nor keeper ran"
	}
	return exit
}

// readStatus looks for the status of an ended process once, in each place that may have it: the kernel
// (waitid, for a child), the pidfd (once it is reaped), /proc (a zombie), the exits that the kernel has
// reported (package adopted), and the ledger of the keeper, which may have reaped it. ok is false when
// none has it yet.
func (s *Set) readStatus(pidfd *os.File, init *record.Process) (status syscall.WaitStatus, at time.Time, ok bool) {
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
	if status, at, ok = s.adopted.Status(s.stopping, init); ok {
		return status, at, true
	}
	if s.opts.Keeper == nil {
		return 0, at, false
	}
	ctx, stop := context.WithTimeout(context.Background(), heldfiles.KeeperTimeout)
	defer stop()
	exit, err := s.opts.Keeper.Exit(ctx, init.Pid, init.Start)
	if err != nil {
		return 0, at, false
	}
	return exit.Status, exit.At, true
}

// killRemaining kills the remaining processes of a container whose init has ended. With a PID
// namespace of its own there are none; without one the children of the init continue to run.
func (c *Container) killRemaining(rec *record.Container) {
	ctx, stop := context.WithTimeout(c.set.stopping, killTimeout)
	defer stop()
	err := rec.Cgroups.Kill(ctx)
	if err == nil || c.set.stopping.Err() != nil {
		return
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		c.set.log.Error("cannot kill the remaining processes of an ended container",
			"container", c.id, "error", err)
		return
	}
	// They are in an uninterruptible system call (a dead NFS server, say). The init is gone, so
	// the exit is reported all the same.
	c.set.log.Warn("processes of an ended container do not die", "container", c.id, "error", err)
}

// drainLog waits until the log is complete, so that the exit is reported afterwards. It waits
// drainTimeout at most for a log that hangs: then it returns false, and the pump goes on.
func (c *Container) drainLog(exit *supervisor.Exit) bool {
	c.mu.Lock()
	pump := c.pump
	c.mu.Unlock()
	ctx, stop := context.WithTimeout(c.set.stopping, drainTimeout)
	defer stop()
	rest := c.streams.FinishTerminal(ctx, func() bool { return pump != nil && pump.LogError() != nil })
	if pump == nil {
		return true
	}
	var err error
	if rest == nil {
		err = pump.Drain(ctx)
	} else {
		err = fmt.Errorf("the output of its terminal waits for the log: %w", ctx.Err())
		go func() {
			<-rest
			_ = pump.Drain(c.set.stopping) // its last line may be unfinished; fails when the container is removed
		}()
	}
	if err == nil {
		pump.Close()
		return true
	}
	if c.set.stopping.Err() == nil {
		c.set.log.Warn("the log is not complete yet; the exit is reported now", "container", c.id, "error", err)
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

// reap reaps the init, if it is our child, and forgets its status.
func (c *Container) reap(pidfd *os.File, init *record.Process) {
	if pidfd != nil {
		c.set.reapChild(pidfd, "container", c.id)
	}
	if init == nil {
		return
	}
	c.set.adopted.Forget(init)
	c.set.forgetExit(init.Pid, init.Start)
}
