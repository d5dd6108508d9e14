package server

import (
	"context"
	"sync"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// watchExits sends the client every exit from now on, and those that it may have missed.
func (ss *session) watchExits(_ context.Context, _ *wire.Request) (*wire.Reply, error) {
	notify := func(exit supervisor.Exit) {
		if err := ss.conn.Note(supervisor.NoteExit, exit); err != nil {
			ss.server.log.Error("cannot report an exit to a client", "container", exit.ID, "error", err)
		}
	}
	ss.watching.Do(func() {
		stop := ss.server.exits.listen(notify)
		go func() {
			<-ss.conn.Done()
			stop()
		}()
	})
	return &wire.Reply{After: func(bool) {
		for _, c := range ss.server.containers.All() {
			if exit := c.Exit(); exit != nil {
				notify(*exit)
			}
		}
	}}, nil
}

// exitListeners are the sessions that watch exits. The zero value is ready.
type exitListeners struct {
	mu        sync.Mutex
	last      int
	listeners map[int]func(supervisor.Exit)
}

// listen calls notify, which must not wait, with each exit from now on, until stop is called.
func (e *exitListeners) listen(notify func(supervisor.Exit)) (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listeners == nil {
		e.listeners = make(map[int]func(supervisor.Exit))
	}
	e.last++
	number := e.last
	e.listeners[number] = notify
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, number)
	}
}

func (e *exitListeners) publish(exit supervisor.Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, notify := range e.listeners {
		notify(exit)
	}
}
