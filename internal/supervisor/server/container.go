package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// container is one container in memory: its record, what is open for it and who
// waits for it.
type container struct {
	id     string
	server *Server

	// verb is held by Create, Start, Update and Remove, so that they come one at
	// a time. Execs, attaches and the exit do not hold it.
	verb chan struct{}
	// streams are this process's ends of the pipes, and the terminal.
	streams *streams

	mu  sync.Mutex
	rec record
	// stopCreate ends a Create under way, for Remove.
	stopCreate context.CancelFunc
	// pidfd of the init, nil while there is none and when it is lost.
	pidfd *os.File
	// console is the socket in which the terminal's master waits.
	console *os.File
	pump    *logpump.Pump
	execs   map[string]*execution
	// starting is closed when a Start under way has come to its end.
	starting chan struct{}

	// ended is closed when the init has ended, exited when that is recorded,
	// and gone when the container is removed.
	ended  chan struct{}
	exited chan struct{}
	gone   chan struct{}
}

func (s *Server) newContainer(rec record) *container {
	return &container{
		id:      rec.ID,
		server:  s,
		verb:    make(chan struct{}, 1),
		rec:     rec,
		streams: &streams{},
		execs:   make(map[string]*execution),
		ended:   make(chan struct{}),
		exited:  make(chan struct{}),
		gone:    make(chan struct{}),
	}
}

// begin waits until no other verb works on the container.
func (c *container) begin(ctx context.Context) error {
	select {
	case c.verb <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("container %s is busy: %w", c.id, ctx.Err())
	}
}

func (c *container) end() { <-c.verb }

// update changes the record, on disk before in memory. It is the only way.
func (c *container) update(change func(*record)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.rec
	change(&next)
	if err := writeJSON(c.server.reserve.Replace, filepath.Join(c.server.dir(c.id), recordName), &next); err != nil {
		return fmt.Errorf("container %s: %w", c.id, err)
	}
	c.rec = next
	return nil
}

// snapshot returns the record as it is now. Its maps are never changed in place.
func (c *container) snapshot() record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// describe is the container as clients see it.
func (c *container) describe() supervisor.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := supervisor.Container{ID: c.id, CgroupPaths: c.rec.Cgroups, Exit: c.rec.Exit}
	if c.rec.Init != nil {
		d.Pid = c.rec.Init.Pid
	}
	switch c.rec.Stage {
	case creating:
		d.State = supervisor.Broken
	case created:
		d.State = supervisor.Created
	case starting, running:
		d.State = supervisor.Running
	case exited:
		d.State, d.Pid = supervisor.Exited, 0
	}
	if c.pump != nil && c.rec.Stage != exited {
		if err := c.pump.LogError(); err != nil {
			d.LogError = err.Error()
		}
	}
	return d
}

// live returns the init's pidfd. errs.NotFound once it has ended.
func (c *container) live() (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd == nil || c.rec.Stage == exited || isClosed(c.ended) {
		return nil, fmt.Errorf("process of container %s: %w", c.id, errs.NotFound)
	}
	return c.pidfd, nil
}

// ending reports whether the init has ended, or is about to: then it has given up its
// namespaces, which an exec would join.
func (c *container) ending() bool {
	init := c.snapshot().Init
	if isClosed(c.ended) || init == nil {
		return true
	}
	proc, err := sysproc.ReadProc(init.Pid)
	if err != nil || proc.Start != init.Start || proc.Zombie() {
		return true
	}
	_, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/ipc", init.Pid))
	return errors.Is(err, os.ErrNotExist)
}

// isInit reports whether a process is the init of a container.
func (s *Server) isInit(pid int) bool {
	return slices.ContainsFunc(s.all(), func(c *container) bool {
		init := c.snapshot().Init
		return init != nil && init.Pid == pid
	})
}

// onRemove sets what Remove does to a Create under way.
func (c *container) onRemove(stop context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopCreate = stop
}

// find returns a container, half-made ones too.
func (s *Server) find(id string) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, errs.NotFound)
}

// has reports whether anything of a container is there.
func (s *Server) has(id string) bool {
	_, err := s.find(id)
	return err == nil
}

// claim makes an id known as being created. errs.Exists when anything of it is
// there.
func (s *Server) claim(rec record) (*container, error) {
	c := s.newContainer(rec)
	c.verb <- struct{}{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[rec.ID] != nil {
		return nil, fmt.Errorf("container %s: %w", rec.ID, errs.Exists)
	}
	s.containers[rec.ID] = c
	return c, nil
}

func (s *Server) forget(c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[c.id] == c {
		delete(s.containers, c.id)
	}
	close(c.gone)
}

// all returns every container.
func (s *Server) all() []*container {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*container, 0, len(s.containers))
	for _, c := range s.containers {
		list = append(list, c)
	}
	return list
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
