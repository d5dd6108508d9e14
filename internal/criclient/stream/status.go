package stream

import (
	"net/http"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/transport/spdy"
	//nolint:staticcheck // client-go takes no other connection
	"k8s.io/apimachinery/pkg/util/httpstream"
)

// statusWatcher notes whether the session's status arrives. A runtime sends the status in a
// stream of its own, for success too. The library takes an empty stream for success, and a
// broken connection leaves the stream empty.
type statusWatcher struct {
	spdy.Upgrader
	received atomic.Bool
}

// NewConnection implements spdy.Upgrader.
func (w *statusWatcher) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	conn, err := w.Upgrader.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	return statusConnection{conn, w}, nil
}

type statusConnection struct {
	httpstream.Connection
	watcher *statusWatcher
}

// CreateStream implements httpstream.Connection.
func (c statusConnection) CreateStream(headers http.Header) (httpstream.Stream, error) {
	s, err := c.Connection.CreateStream(headers)
	if err != nil || headers.Get(corev1.StreamType) != corev1.StreamTypeError {
		return s, err
	}
	return statusStream{s, c.watcher}, nil
}

type statusStream struct {
	httpstream.Stream
	watcher *statusWatcher
}

// Read implements io.Reader.
func (s statusStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if n > 0 {
		s.watcher.received.Store(true)
	}
	return n, err
}
