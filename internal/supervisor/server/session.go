package server

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/containers"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// session is one connection of a client.
type session struct {
	server *Server
	conn   *wire.Conn
	// greeted is set by hello; no other call is answered before.
	greeted atomic.Bool
	// watching registers the session for exits, once.
	watching sync.Once
	// leaves is set when the client does not come back.
	leaves atomic.Bool
}

func (s *Server) serve(sock *net.UnixConn) {
	ss := &session{server: s}
	ss.conn = wire.New(sock, ss)
	s.mu.Lock()
	s.sessions[ss] = true
	s.mu.Unlock()
	stop := context.AfterFunc(s.stopping, func() { ss.conn.Close() })
	defer stop()
	// Calls end with the connection. Their context says that their client did not cancel them.
	if err := ss.conn.Serve(context.WithoutCancel(s.stopping)); err != nil && s.stopping.Err() == nil {
		s.log.Warn("the connection of a client failed", "error", err)
	}
	s.mu.Lock()
	delete(s.sessions, ss)
	last := len(s.sessions) == 0
	s.mu.Unlock()
	if last && ss.leaves.Load() {
		select {
		case s.left <- struct{}{}:
		default:
		}
	}
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
	case supervisor.MethodStreams:
		return (*session).streams
	}
	return nil
}

// HandleCall answers a call. It closes the files that came with it afterwards, but for those that
// keepFile has taken out.
func (ss *session) HandleCall(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	defer func() { closeFiles(req.Files) }()
	m := methodNamed(req.Method)
	if m == nil {
		return nil, fmt.Errorf("call %q: %w", req.Method, errs.Unsupported)
	}
	if req.Method != supervisor.MethodHello && !ss.greeted.Load() {
		return nil, fmt.Errorf("call %q before hello: %w", req.Method, errs.Invalid)
	}
	reply, err := m(ss, ctx, req)
	if err != nil && ss.server.stopping.Err() != nil {
		// The call itself did not fail: the client sees a lost connection.
		ss.conn.Close()
	}
	return reply, err
}

// HandleNote handles a note.
func (ss *session) HandleNote(req *wire.Request) {
	closeFiles(req.Files)
	switch req.Method {
	case supervisor.NoteOffered:
		ss.server.containers.Offered()
	case supervisor.NoteLeave:
		ss.leaves.Store(true)
	}
}

// others calls fn for each session that has said hello, except for one.
func (s *Server) others(but *session, fn func(*session)) {
	s.mu.Lock()
	sessions := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, ss := range sessions {
		if ss != but && ss.greeted.Load() {
			fn(ss)
		}
	}
}

// Hold is one of containers.Clients.
func (s *Server) Hold(id, name string, f *os.File) {
	set := supervisor.StreamSet{ID: id, Names: []string{name}}
	s.others(nil, func(ss *session) {
		// The socket holds the descriptor until the client reads it.
		if err := ss.conn.Note(supervisor.NoteHold, set, f); err != nil {
			s.log.Warn("cannot send a descriptor to a client", "container", id, "stream", name, "error", err)
		}
	})
}

// Drop is one of containers.Clients.
func (s *Server) Drop(id string, names ...string) {
	s.others(nil, func(ss *session) {
		if err := ss.conn.Note(supervisor.NoteDrop, supervisor.StreamSet{ID: id, Names: names}); err != nil {
			s.log.Warn("cannot have a client close descriptors", "container", id, "error", err)
		}
	})
}

// Exited is one of containers.Clients.
func (s *Server) Exited(exit supervisor.Exit) { s.exits.publish(exit) }

// sendStreams sends a session those descriptors of a container that want selects.
func (ss *session) sendStreams(c *containers.Container, want func(name string) bool) {
	set, files := c.Duplicates(want)
	if len(files) == 0 {
		return
	}
	if err := ss.conn.Note(supervisor.NoteHold, set, files...); err != nil {
		ss.server.log.Warn("cannot send descriptors to a client", "container", c.ID(), "error", err)
	}
}

// container finds the container that a request with a Ref means.
func (ss *session) container(req *wire.Request) (*containers.Container, error) {
	var body supervisor.Ref
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	return ss.server.containers.Find(body.ID)
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// filesByName pairs the files of a request with their names. They stay the request's.
func filesByName(req *wire.Request, names []string) (map[string]*os.File, error) {
	if len(names) != len(req.Files) {
		return nil, fmt.Errorf("%d files came and %d names: %w", len(req.Files), len(names), errs.Invalid)
	}
	named := make(map[string]*os.File)
	for i, name := range names {
		named[name] = req.Files[i]
	}
	return named, nil
}

// keepFile takes a file out of a request, which would close it.
func keepFile(req *wire.Request, f *os.File) {
	for i := range req.Files {
		if req.Files[i] == f {
			req.Files[i] = nil
		}
	}
}
