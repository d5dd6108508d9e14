package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/tlsfiles"
)

// Settings say where the metrics are served.
type Settings struct {
	// Listen is HOST:PORT or unix:///PATH, "" for nowhere.
	Listen string
	// TLS has no CertFile for plain HTTP. A socket has none.
	TLS tlsfiles.Files
}

// socketScheme begins the address of a unix socket.
const socketScheme = "unix://"

// headerTimeout bounds the wait for a request, and for the next one of a connection.
const headerTimeout = 30 * time.Second

// Server serves metrics over HTTP at the path /metrics.
type Server struct {
	handler http.Handler
	log     *slog.Logger

	mu       sync.Mutex
	settings Settings
	address  string
	http     *http.Server
	served   chan struct{}
}

// NewServer makes a server that does not listen yet.
func NewServer(handler http.Handler, log *slog.Logger) *Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	return &Server{handler: mux, log: log}
}

// Apply serves with other settings from now on. When the error is not nil, the server continues with the
// former ones if they have another address, and serves nothing otherwise.
func (s *Server) Apply(ctx context.Context, settings Settings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reflect.DeepEqual(settings, s.settings) && (s.http != nil || settings.Listen == "") {
		return nil
	}
	if settings.Listen == "" || settings.Listen == s.settings.Listen {
		s.stop()
	}
	if settings.Listen == "" {
		return nil
	}
	listener, err := listen(ctx, settings, s.log)
	if err != nil {
		return fmt.Errorf("cannot serve metrics on %s (metrics.listen): %w", settings.Listen, err)
	}
	s.stop()
	s.start(listener, settings)
	return nil
}

// start serves on a listener. s.mu is held.
func (s *Server) start(listener net.Listener, settings Settings) {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: 2 * headerTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan struct{})
	s.http, s.served, s.settings, s.address = server, served, settings, listener.Addr().String()
	s.log.Info("serving metrics", "address", s.address, "tls", settings.TLS.CertFile != "")
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("cannot serve metrics any longer", "address", settings.Listen, "error", err)
		}
	}()
}

// stop ends the server with its connections. s.mu is held.
func (s *Server) stop() {
	if s.http == nil {
		return
	}
	if err := s.http.Close(); err != nil {
		s.log.Debug("cannot close the server of metrics", "error", err)
	}
	<-s.served
	s.http, s.served, s.settings, s.address = nil, nil, Settings{}, ""
}

// Address is where the server listens, "" for nowhere: with the port where the settings have port 0.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// Close ends the server.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

func listen(ctx context.Context, settings Settings, log *slog.Logger) (net.Listener, error) {
	if path, ok := strings.CutPrefix(settings.Listen, socketScheme); ok {
		return apisocket.Listen(ctx, apisocket.Options{Path: path, Mode: 0o600})
	}
	var certificates *tlsfiles.Certificates
	if settings.TLS.CertFile != "" {
		host, _, err := net.SplitHostPort(settings.Listen)
		if err != nil {
			return nil, err
		}
		if certificates, err = tlsfiles.New(settings.TLS, "the server of metrics", host, log); err != nil {
			return nil, err
		}
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", settings.Listen)
	if err != nil || certificates == nil {
		return listener, err
	}
	return certificates.Listen(listener), nil
}
