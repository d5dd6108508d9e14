package containers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/logpump"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/supervisor/server/stdio"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Container is one container in memory: its record, its open descriptors and its waiters.
type Container struct {
	id  string
	set *Set

	// exclusive is a lock that Create, Start, Update and Remove hold, so that one runs at a
	// time. Execs, attachments and the exit do not hold it.
	exclusive chan struct{}
	// streams are this process's ends of the pipes, and the terminal.
	streams *stdio.Streams

	mu  sync.Mutex
	rec record.Container
	// stopCreate cancels a Create under way, for Remove.
	stopCreate context.CancelFunc
	// pidfd of the init, nil while there is none, and when it is lost.
	pidfd *os.File
	// console is the socket that has the terminal's master.
	console *os.File
	pump    *logpump.Pump
	execs   map[string]*Execution
	// starting is closed when the Start under way has ended. See holdExit.
	starting chan struct{}

	// ended is closed when the init has ended, exited when that is recorded,
	// and gone when the container is removed.
	ended  chan struct{}
	exited chan struct{}
	gone   chan struct{}
}

func (s *Set) newContainer(rec record.Container) *Container {
	return &Container{
		id:        rec.ID,
		set:       s,
		exclusive: make(chan struct{}, 1),
		rec:       rec,
		streams:   &stdio.Streams{},
		execs:     make(map[string]*Execution),
		ended:     make(chan struct{}),
		exited:    make(chan struct{}),
		gone:      make(chan struct{}),
	}
}

// lock waits until no other call works on the container. See Container.exclusive.
func (c *Container) lock(ctx context.Context) error {
	select {
	case c.exclusive <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("container %s is busy: %w", c.id, ctx.Err())
	}
}

func (c *Container) unlock() { <-c.exclusive }

// update changes the record, on disk before in memory. Nothing else changes it.
func (c *Container) update(change func(*record.Container)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.rec
	change(&next)
	if err := record.WriteJSON(c.set.reserve.Replace, filepath.Join(c.set.dir(c.id), record.Name), &next); err != nil {
		return fmt.Errorf("container %s: %w", c.id, err)
	}
	c.rec = next
	return nil
}

// snapshot returns a copy of the record. Its maps are never changed in place.
func (c *Container) snapshot() record.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// ID is the container's id.
func (c *Container) ID() string { return c.id }

// Exit is how the container ended, nil while it has not.
func (c *Container) Exit() *supervisor.Exit { return c.snapshot().Exit }

// Describe returns the container as clients see it.
func (c *Container) Describe() supervisor.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := supervisor.Container{
		ID: c.id, CgroupPaths: c.rec.Cgroups, Exit: c.rec.Exit, Starter: c.rec.Starter, StarterReason: c.rec.StarterReason,
	}
	d.InSandbox = c.rec.Request.Handler != nil && c.rec.Request.Handler.IsSandbox
	if c.rec.Init != nil {
		d.Pid = c.rec.Init.Pid
	}
	switch c.rec.Stage {
	case record.Creating:
		d.State = supervisor.Broken
	case record.Created:
		d.State = supervisor.Created
	case record.Starting, record.Running:
		d.State = supervisor.Running
	case record.Exited:
		d.State, d.Pid = supervisor.Exited, 0
	}
	if c.pump != nil && c.rec.Stage != record.Exited {
		if err := c.pump.LogError(); err != nil {
			d.LogError = err.Error()
		}
	}
	return d
}

// live returns the pidfd of the init. Kind NotFound once it has ended.
func (c *Container) live() (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd == nil || c.rec.Stage == record.Exited || isClosed(c.ended) {
		return nil, fmt.Errorf("process of container %s: %w", c.id, errs.NotFound)
	}
	return c.pidfd, nil
}

// Duplicates returns the descriptors of the container that a client should hold, none once it has
// ended. want selects by name of the stream. The files stay the container's.
func (c *Container) Duplicates(want func(name string) bool) (supervisor.StreamSet, []*os.File) {
	set := supervisor.StreamSet{ID: c.id}
	named := c.streams.Named()
	c.mu.Lock()
	if c.rec.Stage == record.Exited {
		named = nil
	} else if c.pidfd != nil {
		named[supervisor.StreamPidfd] = c.pidfd
	}
	c.mu.Unlock()
	var files []*os.File
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if want(name) {
			set.Names = append(set.Names, name)
			files = append(files, named[name])
		}
	}
	return set, files
}

// ending reports whether the init has ended or is about to. Then it has left its namespaces, which an
// exec would join.
func (c *Container) ending() bool {
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

// onRemove sets what Remove calls to cancel a Create under way.
func (c *Container) onRemove(stop context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopCreate = stop
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
