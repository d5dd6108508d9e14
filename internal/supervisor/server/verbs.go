package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/wire"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

func (ss *session) info(context.Context, *wire.Request) (*wire.Reply, error) {
	s := ss.server
	used, limit, err := sysfd.CountFDs()
	if err != nil {
		return nil, err
	}
	info := &supervisor.Info{
		Version:         s.opts.Version,
		Runtime:         ociruntime.Name,
		Protocol:        supervisor.ProtocolVersion,
		Pid:             os.Getpid(),
		Descriptors:     used,
		DescriptorLimit: limit,
	}
	if s.opts.Keeper != nil && !isClosed(s.opts.Keeper.Lost()) {
		info.KeeperPid = os.Getppid()
	}
	s.mu.Lock()
	info.Warnings = append(s.host.Warnings(), s.warnings...)
	s.mu.Unlock()
	return &wire.Reply{Body: info}, nil
}

func (ss *session) list(context.Context, *wire.Request) (*wire.Reply, error) {
	list := []supervisor.Container{}
	for _, c := range ss.server.all() {
		list = append(list, c.describe())
	}
	ids, err := ss.server.runtime.IDs()
	if err != nil {
		return nil, err
	}
	for _, id := range ids { // of which nothing but the runtime's state is left
		if !slices.ContainsFunc(list, func(c supervisor.Container) bool { return c.ID == id }) {
			list = append(list, supervisor.Container{ID: id, State: supervisor.Broken})
		}
	}
	slices.SortFunc(list, func(a, b supervisor.Container) int { return cmp.Compare(a.ID, b.ID) })
	return &wire.Reply{Body: list}, nil
}

func (ss *session) watchExits(_ context.Context, _ *wire.Request) (*wire.Reply, error) {
	tell := func(exit supervisor.Exit) {
		if err := ss.conn.Note(supervisor.NoteExit, exit); err != nil {
			ss.server.log.Error("an exit is not told", "container", exit.ID, "error", err)
		}
	}
	ss.listen.Do(func() {
		stop := ss.server.exits.listen(tell)
		go func() {
			<-ss.conn.Done()
			stop()
		}()
	})
	return &wire.Reply{After: func(bool) {
		for _, c := range ss.server.all() {
			if exit := c.snapshot().Exit; exit != nil {
				tell(*exit)
			}
		}
	}}, nil
}

func (ss *session) create(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.CreateRequest
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	ctx, stop := lasting(ctx, ss.server)
	defer stop()
	c, err := ss.server.create(ctx, &body)
	var fault *ociruntime.ProgramError
	if errors.As(err, &fault) && !ss.server.has(body.ID) {
		return &wire.Reply{Body: &supervisor.CreateReply{ProgramError: fault.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	all := func(string) bool { return true }
	ss.server.others(ss, func(other *session) { c.give(other, all) })
	set, files := c.duplicates(all)
	return &wire.Reply{Body: &supervisor.CreateReply{Container: c.describe(), Streams: set}, Files: files}, nil
}

func (ss *session) start(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	c, err := ss.container(req)
	if err != nil {
		return nil, err
	}
	ctx, stop := lasting(ctx, ss.server)
	defer stop()
	pid, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	return &wire.Reply{Body: &supervisor.StartReply{Pid: pid}}, nil
}

func (ss *session) signal(_ context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.SignalRequest
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	c, err := ss.server.find(body.ID)
	if err != nil {
		return nil, err
	}
	if err := c.signal(body.Signal, body.All); err != nil {
		return nil, fmt.Errorf("cannot send %v to container %s: %w", body.Signal, body.ID, err)
	}
	return nil, nil
}

// signal reaches a paused container too when it kills: frozen processes cannot
// die.
func (c *container) signal(sig syscall.Signal, all bool) error {
	group := c.snapshot().Cgroups
	if all {
		if err := group.Signal(sig); err != nil {
			return err
		}
	} else {
		pidfd, err := c.live()
		if err != nil {
			return err
		}
		if err := sysproc.SignalPidfd(pidfd, sig); err != nil {
			return err
		}
	}
	if sig == syscall.SIGKILL {
		return group.Thaw()
	}
	return nil
}

func (ss *session) update(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.UpdateRequest
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	var res specs.LinuxResources
	if err := json.Unmarshal(body.Resources, &res); err != nil {
		return nil, fmt.Errorf("cannot decode resources: %w: %w", err, errs.Invalid)
	}
	c, err := ss.server.find(body.ID)
	if err != nil {
		return nil, err
	}
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	defer c.end()
	if _, err := c.live(); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.State)
	}
	return nil, ss.server.runtime.Update(c.id, &res)
}

func (ss *session) reopenLog(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	c, err := ss.container(req)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	pump, stage := c.pump, c.rec.Stage
	c.mu.Unlock()
	if stage == exited || pump == nil {
		return nil, fmt.Errorf("cannot reopen the log of container %s: it is not running: %w", c.id, errs.State)
	}
	const patience = 30 * time.Second
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	return nil, pump.Reopen(ctx)
}

func (ss *session) remove(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.Ref
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	ctx, stop := lasting(ctx, ss.server)
	defer stop()
	return nil, ss.server.remove(ctx, body.ID)
}

// container finds the container that a request with a Ref means.
func (ss *session) container(req *wire.Request) (*container, error) {
	var body supervisor.Ref
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	return ss.server.find(body.ID)
}
