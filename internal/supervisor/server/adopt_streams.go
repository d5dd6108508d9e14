package server

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// offerTimeout is how long the last words of a container that ended meanwhile
// wait for a client that may hold its pipes, when nobody else does.
const offerTimeout = 15 * time.Second

// adoptStreams finds the pipes and the terminal: in the keeper, else in a process
// of the container's. What is found nowhere a client may still offer.
func (c *container) adoptStreams(ctx context.Context, rec *record) {
	c.adoptPipes(rec)
	for _, console := range c.server.vault.get(c.key("console")) {
		c.adoptConsole(ctx, console)
	}
	for _, f := range c.server.vault.get(c.key("terminal")) { // an offer of a client's, once
		if terminal, err := sysfd.Pollable(f); err == nil {
			c.server.vault.hold(ctx, c.key("terminal"), terminal)
			c.streams.set(supervisor.StreamTerminal, terminal)
		}
	}
	pids, err := rec.Cgroups.Pids()
	if err != nil {
		c.server.log.Warn("a container's processes cannot be listed", "container", c.id, "error", err)
	}
	for name, id := range rec.Pipes {
		access := os.O_RDONLY
		if name == supervisor.StreamStdin {
			access = os.O_WRONLY
		}
		for _, pid := range pids {
			if !c.lacks(name) {
				break
			}
			if f, err := sysproc.FindPipe(pid, id, access); err == nil {
				c.streams.set(name, f)
			}
		}
	}
	c.holdStreams(ctx)
}

// adoptPipes takes what the keeper holds, by what each pipe is, not by its place.
func (c *container) adoptPipes(rec *record) {
	for _, f := range c.server.vault.get(c.key("pipes")) {
		id, err := sysfd.PipeID(f)
		name := nameOf(rec.Pipes, id)
		if err != nil || name == "" || name == supervisor.StreamStdin && rec.StdinClosed {
			f.Close()
			continue
		}
		c.streams.set(name, f)
	}
}

func (c *container) adoptConsole(ctx context.Context, console *os.File) {
	f, err := sysfd.Pollable(console)
	if err != nil {
		c.server.log.Warn("a terminal's socket cannot be used", "container", c.id, "error", err)
		return
	}
	c.mu.Lock()
	c.console = f
	c.mu.Unlock()
	c.server.vault.hold(ctx, c.key("console"), f)
	short, stop := context.WithTimeout(context.Background(), time.Second) // it is there, or will never be
	defer stop()
	master, err := receiveTerminal(short, f)
	if err != nil {
		c.server.log.Warn("a terminal is lost", "container", c.id, "error", err)
		return
	}
	c.streams.set(supervisor.StreamTerminal, master)
}

func nameOf(pipes map[string]uint64, id uint64) string {
	for name, each := range pipes {
		if each == id {
			return name
		}
	}
	return ""
}

// lacks reports whether a stream that the container should have is not open here.
func (c *container) lacks(name string) bool {
	rec := c.snapshot()
	if rec.Stage == exited || rec.Stage == creating {
		return false
	}
	c.mu.Lock()
	noPidfd := c.pidfd == nil
	c.mu.Unlock()
	switch name {
	case supervisor.StreamPidfd:
		return noPidfd
	case supervisor.StreamStart:
		return rec.Stage == starting && len(c.server.vault.get(c.key("start"))) == 0
	case supervisor.StreamTerminal:
		return rec.Terminal && c.streams.named()[name] == nil
	case supervisor.StreamStdin:
		if rec.StdinClosed {
			return false
		}
	}
	_, has := rec.Pipes[name]
	return has && c.streams.named()[name] == nil
}

// lacksAny reports whether adoption has to wait for a client.
func (c *container) lacksAny() bool {
	names := []string{supervisor.StreamStdin, supervisor.StreamStdout, supervisor.StreamStderr, supervisor.StreamTerminal, supervisor.StreamPidfd, supervisor.StreamStart}
	return slices.ContainsFunc(names, c.lacks)
}

// adoptLate waits for a client to offer what is lacking.
func (c *container) adoptLate(ctx context.Context) {
	select {
	case <-c.server.offered:
	case <-time.After(offerTimeout):
	case <-ctx.Done():
		return
	}
	if c.lacksAny() {
		c.server.log.Warn("a container's descriptors are lost", "container", c.id)
	}
	c.adoptRest(ctx)
}

// offer takes descriptors that a client held for a container which lost them.
func (ss *session) offer(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var set supervisor.StreamSet
	if err := req.Decode(&set); err != nil {
		return nil, err
	}
	named, err := files(req, set.Names)
	if err != nil {
		return nil, err
	}
	c, err := ss.server.find(set.ID)
	if err != nil {
		return nil, err
	}
	for name, f := range named {
		if c.lacks(name) && c.owns(name, f) {
			keepFile(req, f)
			c.take(ctx, name, f)
		}
	}
	return nil, nil
}

// owns reports whether f is what the record says of the stream.
func (c *container) owns(name string, f *os.File) bool {
	rec := c.snapshot()
	switch name {
	case supervisor.StreamTerminal, supervisor.StreamStart:
		return true // neither has a name that outlives everything
	case supervisor.StreamPidfd:
		inode, err := sysproc.PidfdInode(f)
		return err == nil && inode == rec.Init.Inode
	}
	id, err := sysfd.PipeID(f)
	return err == nil && id == rec.Pipes[name]
}

func (c *container) take(ctx context.Context, name string, f *os.File) {
	switch name {
	case supervisor.StreamPidfd:
		if pidfd, err := sysfd.Pollable(f); err == nil {
			c.setPidfd(ctx, pidfd)
		}
		return
	case supervisor.StreamStart:
		c.server.vault.hold(ctx, c.key("start"), f)
		return
	case supervisor.StreamTerminal:
		terminal, err := sysfd.Pollable(f)
		if err != nil {
			return
		}
		f = terminal
		c.server.vault.hold(ctx, c.key("terminal"), terminal)
	}
	c.streams.set(name, f)
	c.holdStreams(ctx)
}
