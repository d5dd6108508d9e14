package streaming

import (
	"bufio"
	"fmt"
	"net"
	"net/http"

	gwebsocket "github.com/gorilla/websocket"
	portforwardconst "k8s.io/apimachinery/pkg/util/portforward"
	tunnel "k8s.io/client-go/tools/portforward"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Current clients forward ports by SPDY inside a WebSocket. The library speaks each alone. So
// openTunnel opens the WebSocket and gives the library the SPDY connection inside.

// openTunnel accepts the WebSocket of a request for a tunnel and returns the request inside. On
// error the client has its answer already.
func openTunnel(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request, error) {
	upgrader := gwebsocket.Upgrader{
		Subprotocols: []string{portforwardconst.WebsocketsSPDYTunnelingPrefix + portforward.ProtocolV1Name},
		// The URL with its token is all that lets a client in, as for SPDY.
		CheckOrigin: func(*http.Request) bool { return true },
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open a tunnel: %w", err)
	}
	inside := r.Clone(r.Context())
	inside.Method = http.MethodPost
	inside.Header = http.Header{}
	inside.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	inside.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	inside.Header.Set(httpstream.HeaderProtocolVersion, portforward.ProtocolV1Name)
	return &tunnelWriter{conn: tunnel.NewTunnelingConnection("streaming", conn), header: http.Header{}}, inside, nil
}

func isTunnel(r *http.Request) bool { return wsstream.IsWebSocketRequestWithTunnelingProtocol(r) }

// tunnelWriter answers a request that is upgraded already. It discards the answer, and Hijack
// returns the tunnel.
type tunnelWriter struct {
	conn   net.Conn
	header http.Header
}

// Header implements http.ResponseWriter.
func (t *tunnelWriter) Header() http.Header { return t.header }

// Write implements http.ResponseWriter.
func (t *tunnelWriter) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (t *tunnelWriter) WriteHeader(int) {}

// Hijack implements http.Hijacker.
func (t *tunnelWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.conn, bufio.NewReadWriter(bufio.NewReader(t.conn), bufio.NewWriter(t.conn)), nil
}
