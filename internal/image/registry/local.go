package registry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// A registry can send the client to other hosts: by redirects, and to the realm that issues
// tokens. It must not send the client to addresses of the node alone (loopback and link-local,
// where clouds serve credentials to machines), unless it is at such an address itself. Hosts in
// the configuration or in the image's name may have any address.
//
// The address of the connection decides, not the name that leads to it.

// scope is a kind of address that has a meaning on this node only.
type scope int

const (
	elsewhere scope = iota
	loopback
	linkLocal
)

func scopeOf(addr netip.Addr) scope {
	addr = addr.Unmap()
	switch {
	case addr.IsLoopback(), addr.IsUnspecified(): // the kernel takes the latter for the former
		return loopback
	case addr.IsLinkLocalUnicast(), addr.IsLinkLocalMulticast(), addr.IsInterfaceLocalMulticast():
		return linkLocal
	}
	return elsewhere
}

// locality records the scopes of the registry's own hosts.
type locality struct {
	mu sync.Mutex
	// seen are the scopes of known hosts that were connected to.
	seen map[string]scope
}

func newLocality() *locality { return &locality{seen: map[string]scope{}} }

func (l *locality) saw(host string, s scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[host] = s
}

// allows reports whether origin, a known host, may send the client to addresses of a scope. Of a
// request without origin (for a token) no known host is elsewhere.
func (l *locality) allows(origin string, s scope) bool {
	if s == elsewhere {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.seen[origin]; ok {
		return at == s
	}
	for _, at := range l.seen {
		if at != s {
			return false
		}
	}
	return len(l.seen) > 0
}

// sent is a request as the dialer sees it.
type sent struct {
	host, origin string
	known        bool
	// proxied has the proxy's address, which is the configuration's.
	proxied bool
}

type sentKey struct{}

// check checks a request before a connection is made. It returns the data for the dialer.
func (g guarded) check(req *http.Request) (sent, error) {
	s := sent{host: req.URL.Host, origin: originOf(req), known: g.known[req.URL.Host]}
	if g.proxy != nil {
		proxy, err := g.proxy(req)
		if err != nil {
			return s, err
		}
		s.proxied = proxy != nil
	}
	if s.known {
		return s, nil
	}
	if addr, err := netip.ParseAddr(req.URL.Hostname()); err == nil {
		return s, g.judge(s, addr)
	}
	if !s.proxied {
		return s, nil
	}
	// The proxy looks the name up. It may be on this node: what the name means here counts,
	// where it means something.
	ctx, cancel := context.WithTimeout(req.Context(), lookupTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", req.URL.Hostname())
	if err != nil {
		return s, nil //nolint:nilerr // names of others are the proxy's matter
	}
	for _, addr := range addrs {
		if err := g.judge(s, addr); err != nil {
			return s, err
		}
	}
	return s, nil
}

const lookupTimeout = 2 * time.Second

// judge refuses an address to which the registry may not send the client.
func (g guarded) judge(s sent, addr netip.Addr) error {
	if g.local.allows(s.origin, scopeOf(addr)) {
		return nil
	}
	return fmt.Errorf("the registry sends the client to %s, which is %s, an address of the node itself; if that is meant, name the host in the registry's hosts.toml: %w", s.host, addr, errs.Invalid)
}

// originOf is the host of the first of a chain of redirects, "" for a request that is no
// redirect.
func originOf(req *http.Request) string {
	origin := ""
	for req.Response != nil && req.Response.Request != nil {
		req = req.Response.Request
		origin = req.URL.Host
	}
	return origin
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer is a dialer that checks the address of each connection before a byte is sent.
func (g guarded) dialer(dial dialFunc) dialFunc {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		s, ok := ctx.Value(sentKey{}).(sent)
		at, parseErr := netip.ParseAddrPort(conn.RemoteAddr().String())
		if !ok || parseErr != nil || s.proxied {
			return conn, nil
		}
		if s.known {
			g.local.saw(s.host, scopeOf(at.Addr()))
			return conn, nil
		}
		if err := g.judge(s, at.Addr()); err != nil {
			conn.Close()
			return nil, err
		}
		return conn, nil
	}
}
