package stream

import (
	"net/http"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/transport/spdy"
	//nolint:staticcheck // client-go takes no other connection
	"k8s.io/apimachinery/pkg/util/httpstream"
)

// verdict is told how a session has ended. A runtime says so in a stream of its own, of success, too;
// the library takes nothing at all for success, which is what it reads when the connection breaks.
type verdict struct {
	spdy.Upgrader
	heard atomic.Bool
}

// NewConnection implements spdy.Upgrader.
func (v *verdict) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	conn, err := v.Upgrader.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	return verdictConnection{conn, v}, nil
}

type verdictConnection struct {
	httpstream.Connection
	verdict *verdict
}

// CreateStream implements httpstream.Connection.
func (c verdictConnection) CreateStream(headers http.Header) (httpstream.Stream, error) {
	s, err := c.Connection.CreateStream(headers)
	if err != nil || headers.Get(corev1.StreamType) != corev1.StreamTypeError {
		return s, err
	}
	return verdictStream{s, c.verdict}, nil
}

type verdictStream struct {
	httpstream.Stream
	verdict *verdict
}

// Read implements io.Reader.
func (s verdictStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if n > 0 {
		s.verdict.heard.Store(true)
	}
	return n, err
}
