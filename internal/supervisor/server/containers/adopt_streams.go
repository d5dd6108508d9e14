package containers

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/record"
	"github.com/berthrun/berth/internal/supervisor/server/stdio"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// offerTimeout bounds the wait for a client that may hold the pipes of a container, with its last
// output in them, when neither the keeper nor a process of the container has them.
const offerTimeout = 15 * time.Second

// adoptStreams finds the pipes and the terminal: in the keeper, else in a process of the container or of its runtime.
// A client may offer those that neither has.
func (c *Container) adoptStreams(ctx context.Context, rec *record.Container) {
	c.adoptPipes(rec)
	c.adoptTerminal(ctx)
	pids, err := rec.Cgroups.Pids()
	if err != nil {
		c.set.log.Warn("cannot list the processes of a container", "container", c.id, "error", err)
	}
	if runtime, err := c.runtime(); err == nil {
		pids = append(pids, runtime.Holders(c.id)...)
	}
	for name, id := range rec.Pipes {
		access := os.O_RDONLY
		if name == supervisor.StreamStdin {
			access = os.O_WRONLY
		}
		for _, pid := range pids {
			if !c.Lacks(name) {
				break
			}
			if f, err := sysproc.FindPipe(pid, id, access); err == nil {
				c.streams.Set(name, f)
			}
		}
	}
	c.holdStreams(ctx)
}

// adoptPipes takes the pipes that the keeper holds. It identifies each by its id, not by its
// position.
func (c *Container) adoptPipes(rec *record.Container) {
	for _, f := range c.set.held.Get(c.key("pipes")) {
		id, err := sysfd.PipeID(f)
		name := nameOf(rec.Pipes, id)
		if err != nil || name == "" || name == supervisor.StreamStdin && rec.StdinClosed {
			f.Close()
			continue
		}
		c.streams.Set(name, f)
	}
}

// adoptTerminal takes the terminal that the keeper holds, if there is one.
func (c *Container) adoptTerminal(ctx context.Context) {
	for _, console := range c.set.held.Get(c.key("console")) {
		c.adoptConsole(ctx, console)
	}
	for _, f := range c.set.held.Get(c.key("terminal")) { // a client offered it
		if terminal, err := sysfd.Pollable(f); err == nil {
			c.set.held.Hold(ctx, c.key("terminal"), terminal)
			c.streams.Set(supervisor.StreamTerminal, terminal)
		}
	}
}

func (c *Container) adoptConsole(ctx context.Context, console *os.File) {
	f, err := sysfd.Pollable(console)
	if err != nil {
		c.set.log.Warn("cannot use the socket of a terminal", "container", c.id, "error", err)
		return
	}
	c.mu.Lock()
	c.console = f
	c.mu.Unlock()
	c.set.held.Hold(ctx, c.key("console"), f)
	short, stop := context.WithTimeout(context.Background(), time.Second) // it is there already, or never will be
	defer stop()
	master, err := stdio.ReceiveTerminal(short, f)
	if err != nil {
		c.set.log.Warn("cannot adopt a terminal", "container", c.id, "error", err)
		return
	}
	c.streams.Set(supervisor.StreamTerminal, master)
}

func nameOf(pipes map[string]uint64, id uint64) string {
	for name, each := range pipes {
		if each == id {
			return name
		}
	}
	return ""
}

// Lacks reports whether a stream of the container is not open in this process.
func (c *Container) Lacks(name string) bool {
	rec := c.snapshot()
	if rec.Stage == record.Exited || rec.Stage == record.Creating {
		return false
	}
	c.mu.Lock()
	noPidfd := c.pidfd == nil
	c.mu.Unlock()
	switch name {
	case supervisor.StreamPidfd:
		return noPidfd
	case supervisor.StreamStart:
		return rec.Stage == record.Starting && len(c.set.held.Get(c.key("start"))) == 0
	case supervisor.StreamTerminal:
		return rec.Terminal && c.streams.Named()[name] == nil
	case supervisor.StreamStdin:
		if rec.StdinClosed {
			return false
		}
	}
	_, has := rec.Pipes[name]
	return has && c.streams.Named()[name] == nil
}

// lacksAny reports whether adoption has to wait for the offers of clients.
func (c *Container) lacksAny() bool {
	names := []string{supervisor.StreamStdin, supervisor.StreamStdout, supervisor.StreamStderr, supervisor.StreamTerminal, supervisor.StreamPidfd, supervisor.StreamStart}
	return slices.ContainsFunc(names, c.Lacks)
}

// adoptWhenOffered waits until clients have offered the missing descriptors.
func (c *Container) adoptWhenOffered(ctx context.Context) {
	select {
	case <-c.set.offered:
	case <-time.After(offerTimeout):
	case <-ctx.Done():
		return
	}
	if c.Lacks(supervisor.StreamPidfd) {
		c.openInit(ctx, c.snapshot().Init) // an error of the first attempt may be over
	}
	if c.lacksAny() {
		c.set.log.Warn("cannot find the descriptors of a container; its output or its exit code may be lost", "container", c.id)
	}
	c.adoptRest(ctx)
}

// Offer gives the container a descriptor that a client held, under the name of its stream. It
// takes the descriptor if the container has lost it, and reports whether it did.
func (c *Container) Offer(ctx context.Context, name string, f *os.File) (taken bool) {
	if !c.Lacks(name) || !c.owns(name, f) {
		return false
	}
	c.take(ctx, name, f)
	return true
}

// owns reports whether f is the stream that the record names.
func (c *Container) owns(name string, f *os.File) bool {
	rec := c.snapshot()
	switch name {
	case supervisor.StreamTerminal, supervisor.StreamStart:
		return true // neither has an id that could be recorded
	case supervisor.StreamPidfd:
		inode, err := sysproc.PidfdInode(f)
		return err == nil && inode == rec.Init.Inode
	}
	id, err := sysfd.PipeID(f)
	return err == nil && id == rec.Pipes[name]
}

// take makes the container the owner of f.
func (c *Container) take(ctx context.Context, name string, f *os.File) {
	switch name {
	case supervisor.StreamPidfd:
		if pidfd, err := sysfd.Pollable(f); err == nil {
			c.setPidfd(ctx, pidfd)
		}
		return
	case supervisor.StreamStart:
		c.set.held.Hold(ctx, c.key("start"), f)
		return
	case supervisor.StreamTerminal:
		terminal, err := sysfd.Pollable(f)
		if err != nil {
			return
		}
		f = terminal
		c.set.held.Hold(ctx, c.key("terminal"), terminal)
	}
	c.streams.Set(name, f)
	c.holdStreams(ctx)
}
