package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
)

// endpoint is one host that serves a repository.
type endpoint struct {
	docker.RegistryHost
	// name is its URL, index its place in the configuration.
	name  string
	index int
	// resolver and fetcher ask this endpoint alone.
	resolver remotes.Resolver
	fetcher  remotes.Fetcher
	// What its answers to requests for parts of blobs have shown; see parts.go. ranged: it serves them. whole: it does not,
	// at least not all. limits: it limits requests.
	ranged, whole, limits atomic.Bool
}

// configure returns the hosts that serve images of the domain, in the order in which they are
// tried: hosts.toml's mirrors, then the registry itself. If their configuration cannot be used, sources has the fault, and the
// hosts may only be shown.
func (r *Repository) configure(ctx context.Context, auth Auth, cfg Config) ([]docker.RegistryHost, error) {
	request, err := auth.Credentials(r.domain)
	if err != nil {
		return nil, err
	}
	r.creds = &credentials{ctx: ctx, domain: r.domain, home: homeHost(r.domain), request: request, keys: cfg.Keys}
	known, local := map[string]bool{}, newLocality()
	dir, err := hostDir(cfg.Dirs, r.domain)
	if err != nil && !errdefs.IsNotFound(err) {
		r.sources.fault = fmt.Errorf("cannot look for the configuration of registry %s: %w: %w", r.domain, err, errs.Invalid)
		return r.sources.written(r.creds.home), nil
	}
	r.place, r.sources = dir, readSources(dir)
	if r.sources.fault != nil {
		r.sources.fault = fmt.Errorf("cannot read the configuration of registry %s: %w", r.domain, r.sources.fault)
		return r.sources.written(r.creds.home), nil
	}
	options := config.HostOptions{
		HostDir:     func(string) (string, error) { return dir, nil },
		Credentials: r.creds.basic,
		UpdateClient: func(client *http.Client) error {
			client.Transport = guard(client.Transport, known, local)
			return nil
		},
	}
	hosts, err := config.ConfigureHosts(ctx, options)(r.domain)
	if err == nil {
		err = r.sources.verify(hosts)
	} else {
		err = fmt.Errorf("%s: %w: correct it, or remove the directory: %w", dir, err, errs.Invalid)
	}
	if err != nil {
		r.sources.fault = fmt.Errorf("cannot read the configuration of registry %s: %w", r.domain, err)
		return r.sources.written(r.creds.home), nil
	}
	for i := range hosts {
		known[hosts[i].Host] = true
		token, err := r.creds.bearer(hosts[i].Host)
		if err != nil {
			return nil, err
		}
		hosts[i].Authorizer = tokens{hosts[i].Authorizer}
		if token != "" {
			hosts[i].Authorizer = bearer{hosts[i].Host, token}
		}
	}
	return hosts, nil
}

// homeHost returns the host that serves a domain by default.
func homeHost(domain string) string {
	if host, err := docker.DefaultHost(domain); err == nil {
		return host
	}
	return domain
}

func hostDir(dirs []string, host string) (string, error) {
	for _, dir := range dirs {
		found, err := config.HostDirFromRoot(dir)(host)
		if err == nil || !errdefs.IsNotFound(err) {
			return found, err
		}
	}
	return "", errdefs.ErrNotFound
}

// bearer sends a token as it is, to one host.
type bearer struct{ host, token string }

// Authorize implements docker.Authorizer.
func (b bearer) Authorize(_ context.Context, req *http.Request) error {
	if req.URL.Host == b.host {
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	return nil
}

// AddResponses implements docker.Authorizer: a challenge cannot be answered with
// anything else.
func (b bearer) AddResponses(context.Context, []*http.Response) error {
	return fmt.Errorf("the registry token was refused: %w", docker.ErrInvalidAuthorization)
}

// guarded refuses to send credentials in clear text to a host that configuration does
// not name: a registry may choose the host that issues tokens, not the protocol by
// which passwords are sent. It also refuses redirects to the node itself, see local.go, and
// answers that take memory without a bound, see bounds.go. It counts what a server sends beside the
// range of a request, see skip.go.
type guarded struct {
	http.RoundTripper
	// known hosts may use their configured protocol, and have any address.
	known map[string]bool
	local *locality
	// proxy is the transport's, nil for none.
	proxy func(*http.Request) (*url.URL, error)
}

// maxIdle is how many connections of a pull wait for their next request, which is that for another part of a layer. With
// less than run at a time, each part would make a new connection.
const maxIdle = 64

func guard(inner http.RoundTripper, known map[string]bool, local *locality) http.RoundTripper {
	g := guarded{RoundTripper: inner, known: known, local: local}
	if transport, ok := inner.(*http.Transport); ok {
		g.proxy = transport.Proxy
		transport.DialContext = g.dialer(transport.DialContext)
		transport.MaxIdleConns, transport.MaxIdleConnsPerHost = maxIdle, maxIdle
	}
	return g
}

// RoundTrip implements http.RoundTripper.
func (g guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	secret := req.Header.Get("Authorization") != "" || req.Method == http.MethodPost
	if secret && req.URL.Scheme == "http" && !g.known[req.URL.Host] && !docker.IsLocalhost(req.URL.Host) {
		return nil, fmt.Errorf("credentials are not sent to %s over plain http: %w", req.URL.Host, errs.Invalid)
	}
	s, err := g.check(req)
	if err != nil {
		return nil, err
	}
	asked := req.WithContext(context.WithValue(req.Context(), sentKey{}, s))
	plain(asked)
	part := spanOf(req.Context())
	part.ask(asked)
	resp, err := g.RoundTripper.RoundTrip(asked)
	if err != nil {
		return nil, g.unanswered(req, err)
	}
	if err := throttled(resp); err != nil {
		part.limited()
		return nil, err
	}
	if err := cmp.Or(part.check(resp), encoded(resp, req.URL.Host)); err != nil {
		resp.Body.Close()
		return nil, err
	}
	skip(resp, req)
	limit(resp, req)
	return resp, nil
}

// unanswered returns the error of a request. The resolver repeats a request that timed out, or whose
// connection broke, several times. Where other endpoints can be asked, it must see another error.
func (g guarded) unanswered(req *http.Request, err error) error {
	var netErr net.Error
	timeout := errors.As(err, &netErr) && netErr.Timeout()
	broken := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if len(g.known) < 2 || req.Context().Err() != nil || errs.Kind(err) != nil || !timeout && !broken {
		return err
	}
	return &scrubbed{text: fmt.Sprintf("%s does not answer: %v", req.URL.Host, err), keeps: []error{errs.Unavailable}}
}

// CloseIdleConnections closes connections that are kept for reuse.
func (g guarded) CloseIdleConnections() {
	if closer, ok := g.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}
