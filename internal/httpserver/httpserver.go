// Package httpserver serves HTTP at an address and with certificates that a reload of the configuration can change. A
// fault of the new ones leaves the former ones in place. Its users are the metrics and the node page.
package httpserver

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

	"golang.org/x/net/netutil"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/tlsfiles"
)

// Settings say where a handler is served.
type Settings struct {
	// Listen is HOST:PORT or unix:///PATH, "" for nowhere.
	Listen string
	// TLS has no CertFile for plain HTTP. A socket has none.
	TLS tlsfiles.Files
}

// socketScheme begins the address of a unix socket.
const socketScheme = "unix://"

// headerTimeout bounds the wait for a request, and for the next one of a connection. answerTimeout bounds an
// answer, with the time in which the client reads it. headerBytes bounds what a client sends, connections how many
// clients there are: more wait. stopTimeout bounds the wait for the answers in flight when the server ends.
const (
	headerTimeout = 30 * time.Second
	answerTimeout = 15 * time.Second
	headerBytes   = 64 << 10
	connections   = 100
	stopTimeout   = 500 * time.Millisecond
)

// Server serves one handler.
type Server struct {
	handler http.Handler
	// what is what logs and errors call the thing that is served, key the key of the configuration with its address.
	what, key string
	log       *slog.Logger

	mu       sync.Mutex
	closed   bool
	settings Settings
	address  string
	// certificates are nil without TLS.
	certificates *tlsfiles.Certificates
	// http is nil while nothing is served. served is closed when it has ended.
	http   *http.Server
	served chan struct{}
}

// New makes a server that does not listen yet. what is what logs and errors call the thing that is served ("metrics"),
// key the key of the configuration with its address ("metrics.listen").
func New(handler http.Handler, what, key string, log *slog.Logger) *Server {
	return &Server{handler: handler, what: what, key: key, log: log}
}

// Apply serves with other settings from now on. When it returns an error, the server continues with the former ones.
func (s *Server) Apply(ctx context.Context, settings Settings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || reflect.DeepEqual(settings, s.settings) && s.serves() {
		return nil
	}
	if settings.Listen == "" {
		s.stop()
		return nil
	}
	certificates, err := s.certificatesOf(settings)
	if err == nil {
		err = s.move(ctx, settings, certificates)
	}
	if err != nil {
		return fmt.Errorf("cannot serve %s on %s (%s): %w", s.what, settings.Listen, s.key, err)
	}
	return nil
}

// serves reports whether the server listens and has not ended by itself. s.mu is held.
func (s *Server) serves() bool {
	if s.http == nil {
		return false
	}
	select {
	case <-s.served:
		return false
	default:
		return true
	}
}

// move listens at another address, or with other certificates. The former server ends first if it has the same port,
// which both cannot have, and serves again if the new one cannot. s.mu is held.
func (s *Server) move(ctx context.Context, settings Settings, certificates *tlsfiles.Certificates) error {
	former, formerCertificates := s.settings, s.certificates
	if !s.serves() || port(settings.Listen) == port(former.Listen) {
		s.stop()
	}
	listener, err := listen(ctx, settings.Listen)
	if err == nil {
		s.stop()
		s.start(listener, settings, certificates)
		return nil
	}
	if s.http == nil && former.Listen != "" {
		if listener, again := listen(ctx, former.Listen); again == nil {
			s.start(listener, former, formerCertificates)
		}
	}
	return err
}

// port is the part of an address that two servers cannot share, whatever their hosts: the port, or the path.
func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// start serves on a listener. s.mu is held.
func (s *Server) start(listener net.Listener, settings Settings, certificates *tlsfiles.Certificates) {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: 2 * headerTimeout, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan struct{})
	s.http, s.served, s.settings, s.certificates, s.address = server, served, settings, certificates, listener.Addr().String()
	s.log.Info("serving "+s.what, "address", s.address, "tls", certificates != nil)
	listener = netutil.LimitListener(listener, connections)
	if certificates != nil {
		listener = certificates.Listen(listener)
	}
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("cannot serve "+s.what+" any longer", "address", settings.Listen, "error", err)
		}
	}()
}

// stop ends the server with its connections. Answers in flight are completed within stopTimeout, and cut off
// afterwards. s.mu is held.
func (s *Server) stop() {
	if s.http == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if err != nil {
		s.log.Debug("cannot close the server of "+s.what, "error", err)
	}
	<-s.served
	s.http, s.served, s.settings, s.certificates, s.address = nil, nil, Settings{}, nil, ""
}

// Address is where the server listens, "" for nowhere: with the port where the settings have port 0.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// Close ends the server. Apply does nothing afterwards.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stop()
}

// certificatesOf reads the certificates of a server, nil without TLS.
func (s *Server) certificatesOf(settings Settings) (*tlsfiles.Certificates, error) {
	if settings.TLS.CertFile == "" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(settings.Listen)
	if err != nil {
		return nil, err
	}
	return tlsfiles.New(settings.TLS, "the server of "+s.what, host, s.log)
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, socketScheme); ok {
		return apisocket.Listen(ctx, apisocket.Options{Path: path, Mode: 0o600})
	}
	return apisocket.ListenTCP(ctx, address)
}
