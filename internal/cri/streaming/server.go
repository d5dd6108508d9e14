// Package streaming serves exec, attach and port-forward sessions over HTTP upgrades (SPDY and
// WebSocket). CRI calls return their URLs, each with a token that is valid for one use.
//
// It implements the protocols and knows nothing of containers: Runtime does the work of a
// session. A session lasts as long as its connection. Its context ends when the client leaves or
// the server closes.
package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/tlsfiles"
)

// Defaults of Options.
const (
	DefaultAddress         = "127.0.0.1:0"
	DefaultIdleTimeout     = 4 * time.Hour
	DefaultCreationTimeout = 30 * time.Second
)

// Runtime does the work of sessions. pod.Service implements it.
type Runtime interface {
	// Exec is engine.Engine.Exec: it ends everything it started when ctx ends.
	Exec(ctx context.Context, spec *engine.ExecSpec) (code int32, err error)
	// Attach is engine.Engine.Attach: it leaves the container alone when ctx ends.
	Attach(ctx context.Context, spec *engine.AttachSpec) error
	// PortForward copies between stream and a port of the sandbox's localhost.
	PortForward(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error
}

// Options are what a Server is made from. Runtime and Log are required.
type Options struct {
	Runtime Runtime
	Log     *slog.Logger
	// Address to listen on, DefaultAddress when empty. It must be one that a
	// client can dial: it becomes part of the URLs.
	Address string
	// IdleTimeout closes connections without traffic.
	IdleTimeout time.Duration
	// CreationTimeout bounds the time that a SPDY client takes to open its streams.
	CreationTimeout time.Duration
	// TLS configures TLS; nil for plain HTTP.
	TLS *tlsfiles.Files
}

// Server issues URLs and serves them. All methods are safe for concurrent use.
type Server struct {
	opts     Options
	idle     atomic.Int64 // see SetIdleTimeout
	tickets  tickets
	listener net.Listener
	http     *http.Server
	base     url.URL
	end      context.CancelFunc
}

// Listen binds the address, so that the server can issue URLs. Serve serves them.
func Listen(ctx context.Context, opts Options) (*Server, error) {
	if opts.Address == "" {
		opts.Address = DefaultAddress
	}
	if opts.IdleTimeout == 0 {
		opts.IdleTimeout = DefaultIdleTimeout
	}
	if opts.CreationTimeout == 0 {
		opts.CreationTimeout = DefaultCreationTimeout
	}
	listener, err := apisocket.ListenTCP(ctx, opts.Address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for streaming on %s: %w", opts.Address, err)
	}
	if addr, ok := listener.Addr().(*net.TCPAddr); ok && addr.IP.IsUnspecified() {
		return nil, errors.Join(
			fmt.Errorf("cannot listen for streaming on %s: the address goes into URLs, so it must name one host", opts.Address),
			listener.Close())
	}
	s := &Server{
		opts:     opts,
		listener: watchedListener{listener},
		base:     url.URL{Scheme: "http", Host: listener.Addr().String()},
	}
	s.SetIdleTimeout(opts.IdleTimeout)
	if opts.TLS != nil {
		certs, err := tlsfiles.New(*opts.TLS, "the streaming server", s.base.Hostname(), opts.Log)
		if err != nil {
			return nil, errors.Join(err, listener.Close())
		}
		s.listener, s.base.Scheme = certs.Listen(s.listener), "https"
	}
	// The sessions outlive this call, so they do not have its deadline. Close ends them.
	sessions, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end = end
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: opts.CreationTimeout,
		IdleTimeout:       opts.CreationTimeout, // between requests; sessions are hijacked
		BaseContext:       func(net.Listener) context.Context { return sessions },
		ConnContext:       withConn,
		ConnState:         markHijacked,
		ErrorLog:          slog.NewLogLogger(opts.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// SetIdleTimeout changes the time after which an idle session is closed, of sessions that
// begin from now on.
func (s *Server) SetIdleTimeout(d time.Duration) { s.idle.Store(int64(d)) }

func (s *Server) idleTimeout() time.Duration { return time.Duration(s.idle.Load()) }

// Serve serves until Close is called. Then it returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve streaming on %s: %w", s.base.Host, err)
	}
	return nil
}

// Close ends the server and every session.
func (s *Server) Close() error {
	s.end()
	if err := s.http.Close(); err != nil {
		return fmt.Errorf("cannot close the streaming server: %w", err)
	}
	return nil
}

// Address returns the host and port that the server listens on.
func (s *Server) Address() string { return s.base.Host }

// handler serves /VERB/TOKEN for tokens that were issued for VERB.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{verb}/{token}", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodPost {
			http.Error(w, "streaming wants GET or POST", http.StatusMethodNotAllowed)
			return
		}
		session, ok := s.tickets.take(r.PathValue("verb"), r.PathValue("token"), time.Now())
		if !ok {
			http.NotFound(w, r)
			return
		}
		ctx, cancel := sessionContext(r.Context(), s.idleTimeout())
		defer cancel()
		session(w, r.WithContext(ctx))
		endConn(ctx)
	})
	return mux
}

// issue makes the URL at which session is served, once.
func (s *Server) issue(verb string, session http.HandlerFunc) (string, error) {
	token, err := s.tickets.issue(verb, session, time.Now())
	if err != nil {
		return "", err
	}
	return s.base.JoinPath(verb, token).String(), nil
}
