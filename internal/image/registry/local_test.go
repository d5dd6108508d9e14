package registry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// placed is a connection that reports another remote address.
type placed struct {
	net.Conn
	at net.Addr
}

func (p placed) RemoteAddr() net.Addr { return p.at }

// world is a set of names and their addresses. One server serves all of them.
type world struct {
	addrs    map[string]string
	server   *httptest.Server
	location string
	reached  map[string]int
}

func newWorld(t *testing.T, location string, addrs map[string]string) *world {
	t.Helper()
	w := &world{addrs: addrs, location: location, reached: map[string]int{}}
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.reached[r.Host]++
		if r.URL.Path == "/blob" {
			http.Redirect(rw, r, w.location, http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(rw, "ok")
	}))
	t.Cleanup(w.server.Close)
	return w
}

func (w *world) client(known ...string) *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, w.server.Listener.Addr().String())
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(addr)
		at := w.addrs[host]
		if at == "" {
			at = host
		}
		return placed{conn, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(at), 80))}, nil
	}}
	names := map[string]bool{}
	for _, host := range known {
		names[host] = true
	}
	return &http.Client{Transport: guard(tr, names, newLocality())}
}

func get(t *testing.T, client *http.Client, address string) error {
	t.Helper()
	resp, err := client.Get(address)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// TestRegistryDoesNotSendTheClientToTheNode: a registry cannot redirect the client to the node, by
// any name.
func TestRegistryDoesNotSendTheClientToTheNode(t *testing.T) {
	addrs := map[string]string{
		"far.test": "192.0.2.1", "cdn.test": "192.0.2.2", "near.test": "127.0.0.1", "metadata.test": "169.254.169.254",
		"six.test": "::1", "mapped.test": "::ffff:127.0.0.1", "link.test": "fe80::1", "any.test": "0.0.0.0",
	}
	for _, c := range []struct {
		registry, location string
		refused            bool
	}{
		{"far.test", "http://cdn.test/ok", false},
		{"far.test", "http://near.test/ok", true},
		{"far.test", "http://127.0.0.1:10255/pods", true},
		{"far.test", "http://metadata.test/ok", true},
		{"far.test", "http://169.254.169.254/latest/meta-data", true},
		{"far.test", "http://six.test/ok", true},
		{"far.test", "http://mapped.test/ok", true},
		{"far.test", "http://link.test/ok", true},
		{"far.test", "http://any.test/ok", true},
		{"near.test", "http://near.test:81/ok", false},
		{"near.test", "http://six.test/ok", false},
		{"near.test", "http://metadata.test/ok", true},
		{"near.test", "http://cdn.test/ok", false},
	} {
		w := newWorld(t, c.location, addrs)
		err := get(t, w.client(c.registry), "http://"+c.registry+"/blob")
		if refused := errors.Is(err, errs.Invalid); refused != c.refused || err != nil && !refused {
			t.Errorf("%s redirects to %s: %v", c.registry, c.location, err)
		}
		location, err := url.Parse(c.location)
		if err != nil {
			t.Fatal(err)
		}
		if c.refused && w.reached[location.Host] > 0 {
			t.Errorf("%s redirects to %s: the request was sent", c.registry, c.location)
		}
	}
}

// TestConfiguredHostsAreGuarded: the clients that pulls use follow the rule, and know the hosts to
// which a redirect is allowed.
func TestConfiguredHostsAreGuarded(t *testing.T) {
	hosts, err := (&Repository{domain: "far.test"}).configure(t.Context(), Auth{}, Config{})
	if err != nil || len(hosts) == 0 {
		t.Fatalf("%v, %v", hosts, err)
	}
	for _, host := range hosts {
		if g, ok := host.Client.Transport.(guarded); !ok || !g.known[host.Host] || g.local == nil {
			t.Errorf("%s is asked through %T", host.Host, host.Client.Transport)
		}
	}
}

// TestRealmOnTheNode: a token request is not a redirect. It may go to the node if every host that
// serves the image is on the node.
func TestRealmOnTheNode(t *testing.T) {
	addrs := map[string]string{"far.test": "192.0.2.1", "near.test": "127.0.0.1", "token.test": "127.0.0.1"}
	for _, c := range []struct {
		asked   []string
		refused bool
	}{
		{nil, true},
		{[]string{"far.test"}, true},
		{[]string{"near.test"}, false},
		{[]string{"near.test", "far.test"}, true}, // a mirror on the node, and the registry itself
	} {
		w := newWorld(t, "", addrs)
		client := w.client("far.test", "near.test")
		for _, host := range c.asked {
			if err := get(t, client, "http://"+host+"/v2/"); err != nil {
				t.Fatal(err)
			}
		}
		err := get(t, client, "http://token.test/token")
		if refused := errors.Is(err, errs.Invalid); refused != c.refused || err != nil && !refused {
			t.Errorf("after %q: %v", c.asked, err)
		}
		if err != nil && !strings.Contains(err.Error(), "hosts.toml") {
			t.Errorf("it does not say what to do: %v", err)
		}
	}
}

// TestProxyComesFromTheConfiguration: the proxy may be on the node, but it does not bypass the
// rule.
func TestProxyComesFromTheConfiguration(t *testing.T) {
	for location, refused := range map[string]bool{
		"http://cdn.invalid/ok":     false, // only the proxy can resolve the name
		"http://169.254.169.254/ok": true,
		"http://[::1]/ok":           true,
		"http://localhost/ok":       true,
	} {
		w := newWorld(t, location, map[string]string{"proxy.test": "127.0.0.1"})
		client := w.client("far.invalid")
		g, ok := client.Transport.(guarded)
		if !ok {
			t.Fatalf("%T", client.Transport)
		}
		g.proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.test"})
		g.RoundTripper.(*http.Transport).Proxy = g.proxy
		client.Transport = g
		err := get(t, client, "http://far.invalid/blob")
		if got := errors.Is(err, errs.Invalid); got != refused || err != nil && !got {
			t.Errorf("%s: %v", location, err)
		}
	}
}
