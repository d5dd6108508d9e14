package streaming

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"github.com/berthrun/berth/internal/errs"
)

// PortForwardURL returns a URL for one connection that forwards ports of the request's sandbox.
// A SPDY client, also one in a WebSocket, opens any port. A client that speaks WebSocket alone gets
// the ports of the request.
func (s *Server) PortForwardURL(req *runtimeapi.PortForwardRequest) (string, error) {
	if req.PodSandboxId == "" {
		return "", fmt.Errorf("cannot forward ports: pod_sandbox_id is empty: %w", errs.Invalid)
	}
	for _, port := range req.Port {
		if port < 1 || port > 65535 {
			return "", fmt.Errorf("cannot forward ports: port %d is not between 1 and 65535: %w", port, errs.Invalid)
		}
	}
	return s.issue("portforward", func(w http.ResponseWriter, r *http.Request) {
		if isTunnel(r) {
			inner, inside, err := openTunnel(w, r)
			if err != nil {
				s.opts.Log.DebugContext(r.Context(), "a WebSocket client did not get through its handshake", "error", err)
				return
			}
			w, r = inner, inside
		}
		portforward.ServePortForward(w, r, forwarder{r.Context(), s.opts.Runtime, s.opts.Log}, req.PodSandboxId, "",
			&portforward.V4Options{Ports: req.Port},
			s.idleTimeout(), s.opts.CreationTimeout, portforward.SupportedProtocols)
	})
}

// forwarder implements portforward.PortForwarder. The library calls it with a
// context that never ends, so it brings the connection's own.
type forwarder struct {
	session context.Context //nolint:containedctx // see above
	runtime Runtime
	log     *slog.Logger
}

// PortForward implements portforward.PortForwarder.
func (f forwarder) PortForward(_ context.Context, sandboxID, _ string, port int32, stream io.ReadWriteCloser) error {
	began := time.Now()
	// The library calls it in a goroutine of its own.
	err := errs.Guard("port forwarding to sandbox "+sandboxID, func() error {
		return f.runtime.PortForward(f.session, sandboxID, port, stream)
	})
	logSession(f.session, f.log, began, err, "verb", "portforward", "sandbox", sandboxID, "port", port)
	return err
}
