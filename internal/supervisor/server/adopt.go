package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// adopt takes over every container that a record tells of. One that cannot be
// read is set aside and told; nothing here stops the others.
func (s *Server) adopt(ctx context.Context) {
	entries, err := os.ReadDir(filepath.Join(s.opts.StateDir, "supervisor"))
	if err != nil {
		s.warn("the records of containers cannot be listed: %v", err)
		return
	}
	for _, entry := range entries {
		id := entry.Name()
		rec, err := readRecord(s.dir(id), id)
		if errors.Is(err, errs.NotFound) {
			// Its Create died before the record was written: nothing was made.
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
	for _, key := range s.vault.keys() {
		id, _, _ := strings.Cut(key, "/")
		if _, err := s.find(id); err != nil && key != eventsKey {
			held := s.vault.get(key)
			s.vault.release(key)
			closeFiles(held)
		}
	}
}

func (s *Server) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.log.Error(text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, text)
}

// quarantine sets a record aside, for people.
func (s *Server) quarantine(id string, cause error) {
	to := filepath.Join(s.opts.StateDir, "quarantine", fmt.Sprintf("%s-%d", id, time.Now().UnixNano()))
	err := os.MkdirAll(filepath.Dir(to), 0o700)
	if err == nil {
		err = os.Rename(s.dir(id), to)
	}
	if err != nil {
		s.warn("the record of container %s cannot be used (%v), nor set aside: %v", id, cause, err)
		return
	}
	s.warn("the record of container %s cannot be used and is now %s: %v", id, to, cause)
}

func (s *Server) adoptOne(ctx context.Context, rec *record) {
	c := s.newContainer(*rec)
	s.mu.Lock()
	s.containers[c.id] = c
	s.mu.Unlock()
	if rec.Stage == creating {
		return // nobody finished it; its owner removes it
	}
	if rec.Stage == exited {
		close(c.ended)
		close(c.exited)
		if rec.LogIncomplete {
			c.adoptLog(ctx, rec)
		} else {
			s.dropHeld(c.id)
		}
		c.adoptExecs(ctx)
		return
	}
	c.verb <- struct{}{} // until adoptRest
	c.adoptInit(ctx, rec)
	c.adoptStreams(ctx, rec)
	if err := s.oom.Add(c.id, rec.Cgroups, rec.OOMKills); err != nil {
		s.log.Debug("OOM kills are seen at the exit only", "container", c.id, "error", err)
	}
	c.adoptExecs(ctx)
	if c.lacksAny() {
		go errs.Protect("adoption of container "+c.id, func() { c.adoptLate(ctx) })
		return
	}
	c.adoptRest(ctx)
}

// adoptLog goes on with the log of a container whose exit is told already.
func (c *container) adoptLog(ctx context.Context, rec *record) {
	c.adoptPipes(rec)
	if err := c.openPump(ctx); err != nil {
		c.server.warn("the log of container %s is not completed: %v", c.id, err)
		return
	}
	c.mu.Lock()
	pump := c.pump
	c.mu.Unlock()
	go func() {
		if err := pump.Drain(c.server.stopping); err != nil {
			return // removed, or this process ends
		}
		pump.Close()
		if err := c.update(func(r *record) { r.LogIncomplete = false }); err == nil {
			c.letGo()
		}
	}()
}

// dropHeld lets go of what a predecessor could not any more.
func (s *Server) dropHeld(id string) {
	for _, key := range s.vault.keys() {
		if strings.HasPrefix(key, id+"/") && !strings.HasPrefix(key, id+"/exec/") {
			held := s.vault.get(key)
			s.vault.release(key)
			closeFiles(held)
		}
	}
}

// adoptInit finds the init: the keeper's descriptor of it, or the process with
// the pid and start time that the record tells. Nil when it was reaped and nobody
// held it; then the keeper's ledger knows its end.
func (c *container) adoptInit(ctx context.Context, rec *record) {
	c.server.strangers.follow(rec.Init)
	for _, f := range c.server.vault.get(c.key("pidfd")) {
		inode, err := sysproc.PidfdInode(f)
		if err == nil && (rec.Init.Inode == 0 || inode == rec.Init.Inode) {
			pidfd, err := sysfd.Pollable(f)
			if err == nil {
				c.setPidfd(ctx, pidfd)
				return
			}
		}
	}
	pidfd, err := openProcess(rec.Init)
	if err != nil {
		if !errors.Is(err, errs.NotFound) {
			c.server.log.Warn("a container's init cannot be opened", "container", c.id, "error", err)
		}
		return
	}
	c.setPidfd(ctx, pidfd)
}

func (c *container) setPidfd(ctx context.Context, pidfd *os.File) {
	c.mu.Lock()
	c.pidfd = pidfd
	c.mu.Unlock()
	c.server.vault.hold(ctx, c.key("pidfd"), pidfd)
}

// openProcess opens a recorded process. NotFound when it is gone and its pid
// nobody's, or another's.
func openProcess(p *process) (*os.File, error) {
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

// adoptRest goes on with log, terminal, start and exit. Only then may other verbs
// work on the container.
func (c *container) adoptRest(ctx context.Context) {
	if err := c.streams.reopenToLog(); err != nil {
		c.server.log.Warn("a terminal's output does not reach the log", "container", c.id, "error", err)
	}
	if err := c.openPump(ctx); err != nil {
		c.server.warn("the log of container %s is not written any more: %v", c.id, err)
	}
	c.streams.moveTerminal(c.ended)
	if c.snapshot().Stage == starting {
		c.resumeStart()
	} else {
		c.end()
	}
	go c.watchGuarded()
}

// resumeStart brings a start to its end that a predecessor began. The exit waits
// for it, and so does a Start that is asked for again: c.verb is held, and let go
// of at the end.
func (c *container) resumeStart() {
	done := c.beginStart()
	go func() {
		defer c.end()
		defer done()
		ctx, stop := context.WithTimeout(c.server.stopping, timeout(c.snapshot().Request.StartTimeout))
		defer stop()
		if err := c.started(ctx, c.startOn(ctx)); err != nil {
			c.server.log.Warn("a start that was under way has failed", "container", c.id, "error", err)
		}
	}()
}

// startOn goes on from what the keeper holds of a start.
func (c *container) startOn(ctx context.Context) error {
	leave, err := c.server.enterFork(ctx)
	if err != nil {
		return err
	}
	defer leave()
	c.mu.Lock()
	pidfd := c.pidfd
	c.mu.Unlock()
	held := c.server.vault.get(c.key("start"))
	if len(held) == 1 {
		fifo, err := sysfd.Duplicate(held[0])
		if err == nil {
			fifo, err = sysfd.Pollable(fifo)
		}
		if err != nil {
			return err
		}
		defer fifo.Close()
		return c.server.runtime.FinishStart(ctx, c.starter(ctx, pidfd), fifo)
	}
	if pidfd == nil {
		// It ended, and nobody can tell whether in the program or before: its
		// code has to.
		return nil
	}
	return c.server.runtime.StartAgain(ctx, c.starter(ctx, pidfd))
}

// adoptExecs goes on with execs that a predecessor ran.
func (c *container) adoptExecs(ctx context.Context) {
	matches, err := filepath.Glob(filepath.Join(c.server.dir(c.id), execPrefix+"*"+execSuffix))
	if err != nil {
		return
	}
	for _, path := range matches {
		var r execRecord
		if err := readJSON(path, &r); err != nil || r.ContainerID != c.id {
			c.server.warn("the record %s of an exec cannot be used: %v", path, err)
			continue
		}
		e := c.execution(r.ExecID)
		e.group, e.init, e.uncertain = r.Group, r.Init, r.Init == nil
		c.mu.Lock()
		c.execs[e.id] = e
		c.mu.Unlock()
		e.adopt(ctx, &r)
	}
}

func (e *execution) adopt(ctx context.Context, r *execRecord) {
	held := e.container.server.vault.get(e.key())
	if len(held) == 1 {
		socket, err := sysfd.Pollable(held[0])
		if err == nil {
			e.socket = socket
			e.container.server.vault.hold(ctx, e.key(), socket)
			e.adoptPidfd()
		}
	}
	if e.pidfd == nil && e.init != nil {
		if pidfd, err := openProcess(e.init); err == nil {
			e.pidfd = pidfd
		}
	}
	switch {
	case r.Code != nil:
		e.code, e.over = *r.Code, true
	case e.pidfd != nil || e.init != nil:
		e.container.server.strangers.follow(e.init)
		go e.watchGuarded()
		e.orphaned() // its caller may have given up while nobody was there to hear it
		return
	case len(held) == 0:
		// The keeper died as well. It must not run a second time.
		e.err = fmt.Errorf("exec %s in container %s: nobody knows whether it began before supervisor and keeper died: %w", e.id, e.container.id, errs.Unavailable)
		e.killRest()
	default:
		e.err = fmt.Errorf("exec %s in container %s: it did not begin before the supervisor's death: %w", e.id, e.container.id, errs.NotFound)
		e.killRest()
	}
	close(e.done)
	e.orphaned()
}

func (e *execution) adoptPidfd() {
	ctx, stop := context.WithTimeout(context.Background(), time.Second) // it is there, or its sender lives
	defer stop()
	fd, err := sysfd.PeekFD(ctx, e.socket)
	if err != nil {
		return
	}
	pidfd, err := sysproc.NewPidfd(fd)
	if err != nil {
		return
	}
	e.pidfd = pidfd
	if pid, err := sysproc.PidfdPid(pidfd); err == nil && e.init == nil {
		if init, err := identify(pid, pidfd); err == nil {
			e.init = init
		}
	}
}
