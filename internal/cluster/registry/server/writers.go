package server

import (
	"net/http"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// WritersHeader is in every response of a registry that accepts pushes from its host alone. Those
// of older versions of berth, which took them from any pod, do not have it.
const WritersHeader = "Berth-Registry-Writers"

// errWriter is the response to clients that may not push.
var errWriter = fault{http.StatusForbidden, "DENIED", "this registry takes images from its own host only, at the address that `berth cluster registry status` shows there; nodes and pods may pull"}

// fromHost reports whether an address is that of the host, as a container on a network of its
// engine sees it: the engine leads a port of the host's loopback to the container with the address
// of the network's gateway as sender. Nodes, and pods behind them, have addresses of their own.
func fromHost(sender netip.Addr) bool {
	sender = sender.Unmap().WithZone("")
	if sender.IsLoopback() {
		return true // of the container itself, which is alone in its network namespace
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false
	}
	for _, route := range routes {
		if ones, _ := mask(route); ones > 0 {
			continue
		}
		if gateway, ok := netip.AddrFromSlice(route.Gw); ok && gateway.Unmap() == sender {
			return true
		}
	}
	return false
}

// mask is the length of a route's prefix; a default route has none.
func mask(route netlink.Route) (ones, bits int) {
	if route.Dst == nil {
		return 0, 0
	}
	return route.Dst.Mask.Size()
}

// allowed refuses a push from an address that may not write.
func (r *Registry) allowed(request *http.Request) error {
	if request.Method == http.MethodGet || request.Method == http.MethodHead {
		return nil
	}
	sender, err := netip.ParseAddrPort(request.RemoteAddr)
	if err != nil || !r.mayWrite(sender.Addr()) {
		r.log.Warn("a write was refused", "method", request.Method, "path", request.URL.Path, "sender", request.RemoteAddr)
		return errWriter
	}
	return nil
}
