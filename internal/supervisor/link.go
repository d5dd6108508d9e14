package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

const (
	// connectTimeout is how long a call waits for a connection.
	connectTimeout = time.Minute
	// backOffMin and backOffMax are the pauses between attempts to connect. The
	// supervisor comes back within milliseconds, mostly.
	backOffMin = 5 * time.Millisecond
	backOffMax = time.Second
)

// link is the connection to the supervisor. It connects again whenever it is lost.
type link struct {
	opts  Options
	held  held
	exits exitQueues
	// complete is closed when held has the streams of all containers that there were at the start.
	complete  chan struct{}
	completed sync.Once

	ctx  context.Context //nolint:containedctx // the life of the link, not of a call
	stop context.CancelFunc
	// ended is closed when run has returned.
	ended chan struct{}

	mu   sync.Mutex
	conn *wire.Conn // nil while there is none
	// change is closed, and another one made, when conn or err change.
	change chan struct{}
	// err is why there is no connection.
	err   error
	final bool
}

func newLink(opts Options) *link {
	ctx, stop := context.WithCancel(context.Background())
	return &link{opts: opts, ctx: ctx, stop: stop, ended: make(chan struct{}), change: make(chan struct{}), complete: make(chan struct{})}
}

func (l *link) close() error {
	l.stop()
	<-l.ended
	l.held.dropAll()
	return nil
}

// run connects again and again, until close.
func (l *link) run() {
	defer close(l.ended)
	defer l.set(nil, fmt.Errorf("client is closed: %w", errs.Unavailable), true)
	for pause := backOffMin; l.ctx.Err() == nil; {
		conn, later, err := l.dial()
		if err == nil {
			pause = backOffMin
			l.set(conn, nil, false)
			if later {
				go l.fetchStreams(conn)
			} else {
				l.setComplete()
			}
			l.opts.Logger.Debug("connected to the supervisor", "socket", l.opts.Socket)
			select {
			case <-conn.Done():
				l.set(nil, fmt.Errorf("supervisor is gone: %w", errs.Unavailable), false)
				if l.ctx.Err() == nil {
					l.opts.Logger.Warn("connection to the supervisor is lost; connecting again", "socket", l.opts.Socket)
				}
			case <-l.ctx.Done():
				_ = conn.Note(NoteLeave, struct{}{}) // without it the supervisor waits a moment before it ends
				conn.Close()
				<-conn.Done()
			}
			continue
		}
		l.set(nil, err, errors.Is(err, errs.Unsupported))
		if errors.Is(err, errs.Unavailable) && l.restart() {
			continue
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, backOffMax)
	}
}

// restart has a supervisor started, and reports whether one answers.
func (l *link) restart() bool {
	if l.opts.Restart == nil {
		return false
	}
	err := l.opts.Restart(l.ctx)
	if err != nil && l.ctx.Err() == nil {
		l.opts.Logger.Error("cannot start a supervisor", "socket", l.opts.Socket, "error", err)
	}
	return err == nil
}

func (l *link) set(conn *wire.Conn, err error, final bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.err, l.final = conn, err, final
	close(l.change)
	l.change = make(chan struct{})
}

// await returns the connection as soon as there is one.
func (l *link) await(ctx context.Context) (*wire.Conn, error) {
	for {
		l.mu.Lock()
		conn, err, final, change := l.conn, l.err, l.final, l.change
		l.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		if final {
			return nil, err
		}
		select {
		case <-change:
		case <-ctx.Done():
			if err == nil {
				err = errs.Unavailable
			}
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// later reports whether the exchange of descriptors waits for Options.After.
func (l *link) later() bool {
	if l.opts.After == nil {
		return false
	}
	select {
	case <-l.opts.After:
		return false
	default:
		return true
	}
}

// fetchStreams gets the streams of all containers once Options.After is closed. If the connection ends before, the next
// one gets them.
func (l *link) fetchStreams(conn *wire.Conn) {
	select {
	case <-l.opts.After:
	case <-conn.Done():
		return
	}
	_, err := conn.Call(l.ctx, MethodStreams, struct{}{}, nil)
	if err != nil && !errors.Is(err, errs.Unsupported) { // an older supervisor has sent them at once
		if !errors.Is(err, wire.ErrLost) && l.ctx.Err() == nil {
			l.opts.Logger.Warn("cannot get the descriptors of containers from the supervisor; connecting again", "error", err)
			conn.Close()
		}
		return
	}
	l.setComplete()
}

func (l *link) setComplete() { l.completed.Do(func() { close(l.complete) }) }

// awaitStreams waits until the streams of all containers are held.
func (l *link) awaitStreams(ctx context.Context) error {
	select {
	case <-l.complete:
		return nil
	default:
	}
	select {
	case <-l.complete:
		return nil
	case <-l.ended:
		return fmt.Errorf("client is closed: %w", errs.Unavailable)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// dial connects, agrees on a version, and exchanges descriptors unless that is to come later.
func (l *link) dial() (_ *wire.Conn, later bool, err error) {
	var d net.Dialer
	sock, err := d.DialContext(l.ctx, "unix", l.opts.Socket)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", err, errs.Unavailable)
		}
		return nil, false, err
	}
	conn := wire.New(sock.(*net.UnixConn), l)
	go func() {
		if err := conn.Serve(l.ctx); err != nil {
			l.opts.Logger.Warn("the connection to the supervisor failed", "error", err)
		}
	}()
	ctx, stop := context.WithTimeout(l.ctx, connectTimeout)
	defer stop()
	later = l.later()
	if err := l.greet(ctx, conn, later); err != nil {
		conn.Close()
		return nil, false, err
	}
	return conn, later, nil
}

func (l *link) greet(ctx context.Context, conn *wire.Conn, later bool) error {
	var welcome Welcome
	hello := Hello{Protocol: ProtocolVersion, Held: l.held.names(), Later: later}
	if _, err := conn.Call(ctx, MethodHello, hello, &welcome); err != nil {
		return err
	}
	if welcome.Protocol > ProtocolVersion || welcome.Protocol < ProtocolVersion-1 {
		return fmt.Errorf("supervisor speaks protocol %d, this client %d: %w", welcome.Protocol, ProtocolVersion, errs.Unsupported)
	}
	for _, id := range welcome.Drop {
		l.held.drop(id)
	}
	for id, names := range welcome.Want {
		set := StreamSet{ID: id}
		var files []*os.File
		for _, name := range names {
			if f := l.held.get(id, name); f != nil {
				set.Names, files = append(set.Names, name), append(files, f)
			}
		}
		if _, err := conn.Call(ctx, MethodOffer, set, nil, files...); err != nil && !errors.Is(err, errs.NotFound) {
			return err
		}
	}
	if err := conn.Note(NoteOffered, struct{}{}); err != nil {
		return err
	}
	if l.exits.any() {
		if _, err := conn.Call(ctx, MethodExits, struct{}{}, nil); err != nil {
			return err
		}
	}
	return nil
}

// HandleCall refuses every call: the supervisor makes none.
func (l *link) HandleCall(_ context.Context, req *wire.Request) (*wire.Reply, error) {
	for _, f := range req.Files {
		f.Close()
	}
	return nil, fmt.Errorf("call %q: %w", req.Method, errs.Unsupported)
}

// HandleNote handles a note of the supervisor.
func (l *link) HandleNote(req *wire.Request) {
	var err error
	switch req.Method {
	case NoteExit:
		var exit Exit
		if err = req.Decode(&exit); err == nil {
			l.exits.put(exit)
		}
	case NoteHold:
		var set StreamSet
		if err = req.Decode(&set); err == nil {
			l.held.add(set, req.Files)
			return
		}
	case NoteDrop:
		var set StreamSet
		if err = req.Decode(&set); err == nil {
			l.held.drop(set.ID, set.Names...)
		}
	}
	for _, f := range req.Files {
		f.Close()
	}
	if err != nil {
		l.opts.Logger.Warn("cannot read a note of the supervisor", "error", err)
	}
}

// repeat is call for idempotent methods: it repeats the call when the connection is lost.
func (l *link) repeat(ctx context.Context, method string, in, out any) error {
	for {
		err := l.call(ctx, method, in, out)
		if !errors.Is(err, wire.ErrLost) || ctx.Err() != nil {
			return err
		}
	}
}

// call makes a call, once there is a connection.
func (l *link) call(ctx context.Context, method string, in, out any, files ...*os.File) error {
	got, err := l.callFiles(ctx, method, in, out, files...)
	for _, f := range got {
		f.Close()
	}
	return err
}

func (l *link) callFiles(ctx context.Context, method string, in, out any, files ...*os.File) ([]*os.File, error) {
	conn, err := l.patient(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Call(ctx, method, in, out, files...)
}

// callToEnd is call, but when ctx ends it waits for the supervisor to have undone
// its work.
func (l *link) callToEnd(ctx context.Context, method string, in, out any, files ...*os.File) error {
	conn, err := l.patient(ctx)
	if err != nil {
		return err
	}
	got, err := conn.CallToEnd(ctx, method, in, out, files...)
	for _, f := range got {
		f.Close()
	}
	return err
}

func (l *link) patient(ctx context.Context) (*wire.Conn, error) {
	short, stop := context.WithTimeout(ctx, connectTimeout)
	defer stop()
	return l.await(short)
}
