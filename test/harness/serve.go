package harness

import (
	"net"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/sys/sysns"
)

// Serve serves HTTP in the instance's host namespace until the test ends, and returns its address and port.
func (b *Berth) Serve(handler http.Handler) (host string) {
	b.T.Helper()
	var listener net.Listener
	must(b.T, sysns.InNetNS("/run/netns/"+b.NetNS, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: 100 * time.Millisecond}
	go func() { _ = server.Serve(listener) }()
	b.T.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}
