package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/adopted"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// adopt adopts every container that has a record. A record that cannot be read goes to the
// quarantine, with a warning; the others are adopted all the same.
func (s *Set) adopt(ctx context.Context) {
	entries, err := os.ReadDir(filepath.Join(s.opts.StateDir, "supervisor"))
	if err != nil {
		s.warn("cannot list the records of containers: %v", err)
		return
	}
	for _, entry := range entries {
		id := entry.Name()
		rec, err := record.Read(s.dir(id), id)
		if errors.Is(err, errs.NotFound) {
			// The supervisor died before it wrote the record: nothing was made.
			err = os.RemoveAll(s.dir(id))
			if err == nil {
				continue
			}
		}
		if err != nil {
			s.quarantine(id, err)
			continue
		}
		s.adoptOne(ctx, rec)
	}
	for _, key := range s.held.Keys() {
		id, _, _ := strings.Cut(key, "/")
		if _, err := s.Find(id); err != nil && key != adopted.SocketKey {
			held := s.held.Get(key)
			s.held.Release(key)
			closeFiles(held)
		}
	}
}

// quarantine moves the directory of a record that cannot be used to the quarantine.
func (s *Set) quarantine(id string, cause error) {
	to := filepath.Join(s.opts.StateDir, "quarantine", fmt.Sprintf("%s-%d", id, time.Now().UnixNano()))
	err := os.MkdirAll(filepath.Dir(to), 0o700)
	if err == nil {
		err = os.Rename(s.dir(id), to)
	}
	if err != nil {
		s.warn("the record of container %s cannot be used (%v) and cannot be moved to the quarantine: %v", id, cause, err)
		return
	}
	s.warn("the record of container %s cannot be used and is now %s: %v", id, to, cause)
}

func (s *Set) adoptOne(ctx context.Context, rec *record.Container) {
	c := s.newContainer(*rec)
	s.mu.Lock()
	s.containers[c.id] = c
	s.mu.Unlock()
	if rec.Stage == record.Creating {
		return // partly created: its owner removes it
	}
	if rec.Stage == record.Exited {
		close(c.ended)
		close(c.exited)
		if rec.LogIncomplete {
			c.adoptLog(ctx, rec)
		} else {
			s.releaseHeld(c.id)
		}
		c.adoptExecs(ctx)
		return
	}
	c.exclusive <- struct{}{} // until adoptRest has ended
	c.adoptInit(ctx, rec)
	c.adoptStreams(ctx, rec)
	if err := s.oom.Add(c.id, rec.Cgroups, rec.OOMKills); err != nil {
		s.log.Debug("cannot watch for OOM kills; they are noticed at the exit only", "container", c.id, "error", err)
	}
	c.adoptExecs(ctx)
	if c.lacksAny() {
		go errs.Protect("adoption of container "+c.id, func() { c.adoptWhenOffered(ctx) })
		return
	}
	c.adoptRest(ctx)
}

// adoptLog completes the log of a container whose exit was reported before. The terminal may still have output, too.
func (c *Container) adoptLog(ctx context.Context, rec *record.Container) {
	c.adoptPipes(rec)
	c.adoptTerminal(ctx)
	if err := c.openLog(ctx); err != nil {
		c.set.warn("cannot complete the log of container %s: %v", c.id, err)
		return
	}
	c.mu.Lock()
	pump := c.pump
	c.mu.Unlock()
	go func() {
		if rest := c.streams.FinishTerminal(c.set.stopping, func() bool { return pump.LogError() != nil }); rest != nil {
			return // this process ends
		}
		if err := pump.Drain(c.set.stopping); err != nil {
			return // removed, or this process ends
		}
		pump.Close()
		if err := c.update(func(r *record.Container) { r.LogIncomplete = false }); err == nil {
			c.releaseStreams()
		}
	}()
}

// openLog lets the pump of a predecessor continue, and the copy of the terminal's output into its pipe.
func (c *Container) openLog(ctx context.Context) error {
	if err := c.streams.ReopenToLog(); err != nil {
		c.set.log.Warn("cannot write the output of a terminal to the log", "container", c.id, "error", err)
	}
	err := c.openPump(ctx)
	c.streams.CopyTerminal(c.ended)
	return err
}

// releaseHeld has the keeper close what it holds of an ended container: a predecessor died before it
// could.
func (s *Set) releaseHeld(id string) {
	for _, key := range s.held.Below(id + "/") {
		if !strings.HasPrefix(key, id+"/exec/") {
			held := s.held.Get(key)
			s.held.Release(key)
			closeFiles(held)
		}
	}
}

// adoptInit finds the init: by the pidfd that the keeper holds, or by the pid and the start time in
// the record. It finds none when the init was reaped and the keeper held no pidfd; then the keeper's
// ledger has its status.
func (c *Container) adoptInit(ctx context.Context, rec *record.Container) {
	c.set.adopted.Follow(rec.Init)
	for _, f := range c.set.held.Get(c.key("pidfd")) {
		inode, err := sysproc.PidfdInode(f)
		if err == nil && (rec.Init.Inode == 0 || inode == rec.Init.Inode) {
			pidfd, err := sysfd.Pollable(f)
			if err == nil {
				c.setPidfd(ctx, pidfd)
				return
			}
		}
	}
	c.openInit(ctx, rec.Init)
}

// openInit opens the init by its pid, unless it has ended.
func (c *Container) openInit(ctx context.Context, init *record.Process) {
	pidfd, err := openProcess(init)
	switch {
	case err == nil:
		c.setPidfd(ctx, pidfd)
	case !errors.Is(err, errs.NotFound):
		c.set.log.Warn("cannot open the init of a container", "container", c.id, "error", err)
	}
}

func (c *Container) setPidfd(ctx context.Context, pidfd *os.File) {
	c.mu.Lock()
	c.pidfd = pidfd
	c.mu.Unlock()
	c.set.held.Hold(ctx, c.key("pidfd"), pidfd)
}

// openProcess opens a recorded process. Kind NotFound when it is gone, also when another process has
// its pid now.
func openProcess(p *record.Process) (*os.File, error) {
	pidfd, err := sysproc.OpenPidfd(p.Pid)
	if err != nil {
		return nil, err
	}
	proc, err := sysproc.ReadProc(p.Pid)
	if err == nil && proc.Start != p.Start {
		err = fmt.Errorf("process %d: %w", p.Pid, errs.NotFound)
	}
	if err == nil && p.Inode != 0 {
		inode, inodeErr := sysproc.PidfdInode(pidfd)
		if inodeErr == nil && inode != p.Inode {
			inodeErr = fmt.Errorf("process %d: %w", p.Pid, errs.NotFound)
		}
		err = inodeErr
	}
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	return pidfd, nil
}

// reopen opens a recorded process that could not be opened before, for example because too many files were open: it may run all
// the same. It returns nil when the process has ended, and an error when this process ends.
func (s *Set) reopen(p *record.Process) (*os.File, error) {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		pidfd, err := openProcess(p)
		if err == nil || errors.Is(err, errs.NotFound) {
			return pidfd, nil
		}
		select {
		case <-s.stopping.Done():
			return nil, s.stopping.Err()
		case <-time.After(delay):
		}
	}
}

// adoptRest adopts log, terminal, start and exit, and unlocks the container for other calls.
func (c *Container) adoptRest(ctx context.Context) {
	if err := c.openLog(ctx); err != nil {
		c.set.warn("cannot write the log of container %s any more: %v", c.id, err)
	}
	if c.snapshot().Stage == record.Starting {
		c.resumeStart()
	} else {
		c.unlock()
	}
	c.watch()
}

// resumeStart completes a start that a predecessor began. The exit waits for it, and so does a
// repeated Start: the container is locked until then.
func (c *Container) resumeStart() {
	done := c.holdExit()
	go func() {
		defer c.unlock()
		defer done()
		ctx, stop := context.WithTimeout(c.set.stopping, timeout(c.snapshot().Request.StartTimeout))
		defer stop()
		if err := c.finishStart(ctx, c.continueStart(ctx)); err != nil {
			c.set.log.Warn("cannot complete a start that was under way", "container", c.id, "error", err)
		}
	}()
}

// continueStart continues a start with the FIFO, if the keeper holds it.
func (c *Container) continueStart(ctx context.Context) error {
	leave, err := c.set.enterFork(ctx)
	if err != nil {
		return err
	}
	defer leave()
	c.mu.Lock()
	pidfd := c.pidfd
	c.mu.Unlock()
	runtime, err := c.runtime()
	if err != nil {
		return err
	}
	var fifo *os.File
	if held := c.set.held.Get(c.key("start")); len(held) == 1 {
		fifo, err = sysfd.Duplicate(held[0])
		if err == nil {
			fifo, err = sysfd.Pollable(fifo)
		}
		if err != nil {
			return err
		}
		defer fifo.Close()
	}
	return runtime.Resume(ctx, c.startOf(ctx, pidfd), fifo)
}
