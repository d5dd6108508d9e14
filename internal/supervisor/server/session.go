package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// session is one connection of a client.
type session struct {
	server *Server
	conn   *wire.Conn
	// greeted is closed by Hello; no other call is answered before.
	greeted chan struct{}
	// listen begins to tell exits, once.
	listen sync.Once
}

func (s *Server) serve(sock *net.UnixConn) {
	ss := &session{server: s, greeted: make(chan struct{})}
	ss.conn = wire.New(sock, ss)
	s.mu.Lock()
	s.sessions[ss] = true
	s.mu.Unlock()
	stop := context.AfterFunc(s.stopping, func() { ss.conn.Close() })
	defer stop()
	// Calls end with the connection, and learn that it was not their client's wish.
	if err := ss.conn.Serve(context.WithoutCancel(s.stopping)); err != nil && s.stopping.Err() == nil {
		s.log.Warn("a client's connection fails", "error", err)
	}
	s.mu.Lock()
	delete(s.sessions, ss)
	s.mu.Unlock()
}

// method answers one kind of call.
type method func(ss *session, ctx context.Context, req *wire.Request) (*wire.Reply, error)

func methodNamed(name string) method {
	switch name {
	case supervisor.MethodHello:
		return (*session).hello
	case supervisor.MethodOffer:
		return (*session).offer
	case supervisor.MethodInfo:
		return (*session).info
	case supervisor.MethodCreate:
		return (*session).create
	case supervisor.MethodStart:
		return (*session).start
	case supervisor.MethodSignal:
		return (*session).signal
	case supervisor.MethodUpdate:
		return (*session).update
	case supervisor.MethodExec:
		return (*session).exec
	case supervisor.MethodExecWait:
		return (*session).execWait
	case supervisor.MethodAttach:
		return (*session).attach
	case supervisor.MethodStdinDone:
		return (*session).stdinDone
	case supervisor.MethodReopenLog:
		return (*session).reopenLog
	case supervisor.MethodRemove:
		return (*session).remove
	case supervisor.MethodList:
		return (*session).list
	case supervisor.MethodExits:
		return (*session).watchExits
	}
	return nil
}

// HandleCall answers a call. Files that came with it are closed afterwards; who
// keeps one takes it out of the request.
func (ss *session) HandleCall(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	defer func() { closeFiles(req.Files) }()
	m := methodNamed(req.Method)
	if m == nil {
		return nil, fmt.Errorf("call %q: %w", req.Method, errs.Unsupported)
	}
	if req.Method != supervisor.MethodHello && !isClosed(ss.greeted) {
		return nil, fmt.Errorf("call %q before hello: %w", req.Method, errs.Invalid)
	}
	reply, err := m(ss, ctx, req)
	if err != nil && ss.server.stopping.Err() != nil {
		// Not a fault of the call: to the client it is a lost connection.
		ss.conn.Close()
	}
	return reply, err
}

// HandleNote takes a note.
func (ss *session) HandleNote(req *wire.Request) {
	closeFiles(req.Files)
	if req.Method == supervisor.NoteOffered {
		ss.server.offeredOnce.Do(func() { close(ss.server.offered) })
	}
}

// hello agrees on a version and on who lacks which descriptors.
func (ss *session) hello(_ context.Context, req *wire.Request) (*wire.Reply, error) {
	var h supervisor.Hello
	if err := req.Decode(&h); err != nil {
		return nil, err
	}
	const own = supervisor.ProtocolVersion
	if h.Protocol > own+1 || h.Protocol < own-1 {
		return nil, fmt.Errorf("client speaks protocol %d, this supervisor %d: %w", h.Protocol, own, errs.Unsupported)
	}
	if isClosed(ss.greeted) {
		return nil, fmt.Errorf("second hello: %w", errs.Invalid)
	}
	welcome := &supervisor.Welcome{Protocol: min(own, h.Protocol), Want: make(map[string][]string)}
	for id, names := range h.Held {
		c, err := ss.server.find(id)
		if err != nil {
			welcome.Drop = append(welcome.Drop, id)
			continue
		}
		for _, name := range names {
			if c.lacks(name) {
				welcome.Want[id] = append(welcome.Want[id], name)
			}
		}
	}
	close(ss.greeted)
	return &wire.Reply{Body: welcome, After: func(bool) { ss.giveAll(h.Held) }}, nil
}

// giveAll sends the client the descriptors that it does not hold.
func (ss *session) giveAll(held map[string][]string) {
	for _, c := range ss.server.all() {
		has := held[c.id]
		c.give(ss, func(name string) bool { return !slices.Contains(has, name) })
	}
}

// give sends a session those descriptors of a container that want selects.
func (c *container) give(ss *session, want func(name string) bool) {
	set, files := c.duplicates(want)
	if len(files) == 0 {
		return
	}
	if err := ss.conn.Note(supervisor.NoteHold, set, files...); err != nil {
		c.server.log.Warn("a client does not get descriptors", "container", c.id, "error", err)
	}
}

// duplicates returns what a client should hold of a container that has not
// ended. The files stay the container's.
func (c *container) duplicates(want func(name string) bool) (supervisor.StreamSet, []*os.File) {
	set := supervisor.StreamSet{ID: c.id}
	named := c.streams.named()
	c.mu.Lock()
	if c.rec.Stage == exited {
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

// others calls fn for each session that has said hello, but one.
func (s *Server) others(but *session, fn func(*session)) {
	s.mu.Lock()
	sessions := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, ss := range sessions {
		if ss != but && isClosed(ss.greeted) {
			fn(ss)
		}
	}
}

// tellDropped has every client close what it holds of a container: all of it, or
// what names says.
func (s *Server) tellDropped(id string, names ...string) {
	s.others(nil, func(ss *session) {
		if err := ss.conn.Note(supervisor.NoteDrop, supervisor.StreamSet{ID: id, Names: names}); err != nil {
			s.log.Warn("a client is not told of a removal", "container", id, "error", err)
		}
	})
}

// lasting returns a context for work that goes on when the client's connection
// ends, but not when the client cancels.
func lasting(ctx context.Context, s *Server) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(s.stopping)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errs.Unavailable) {
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

// outlasting is lasting for work that must not be cut in the middle: when this
// process ends it has lastCalls more.
func outlasting(ctx context.Context, s *Server) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errs.Unavailable) {
			cancel()
		}
	})
	stopLast := context.AfterFunc(s.stopping, func() { time.AfterFunc(lastCalls, cancel) })
	return out, func() { stop(); stopLast(); cancel() }
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// files pairs the files of a request with their names. They stay the request's.
func files(req *wire.Request, names []string) (map[string]*os.File, error) {
	if len(names) != len(req.Files) {
		return nil, fmt.Errorf("%d files came and %d names: %w", len(req.Files), len(names), errs.Invalid)
	}
	named := make(map[string]*os.File)
	for i, name := range names {
		named[name] = req.Files[i]
	}
	return named, nil
}

// keep takes a file out of a request.
func keepFile(req *wire.Request, f *os.File) {
	for i := range req.Files {
		if req.Files[i] == f {
			req.Files[i] = nil
		}
	}
}
