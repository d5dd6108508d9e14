package registry

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
)

// configuredHosts are the hosts that serve images of domain, in the order in which
// they are tried: hosts.toml's mirrors, then the registry itself.
func configuredHosts(ctx context.Context, domain string, auth Auth, cfg Config) ([]docker.RegistryHost, error) {
	credentials, err := auth.Credentials(domain)
	if err != nil {
		return nil, err
	}
	home := homeHost(domain)
	known, local := map[string]bool{}, newLocality()
	options := config.HostOptions{
		HostDir: func(host string) (string, error) { return hostDir(cfg.Dirs, host) },
		Credentials: func(host string) (string, string, error) {
			if host != home && host != domain {
				return "", "", nil
			}
			return credentials.User, credentials.Secret, nil
		},
		UpdateClient: func(client *http.Client) error {
			client.Transport = guard(client.Transport, known, local)
			return nil
		},
	}
	hosts, err := config.ConfigureHosts(ctx, options)(domain)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration of registry %s: %w: %w", domain, err, errs.Invalid)
	}
	for i := range hosts {
		if hosts[i].Host == "" || hosts[i].Scheme != "http" && hosts[i].Scheme != "https" {
			return nil, fmt.Errorf("cannot read the configuration of registry %s: hosts.toml names the host \"%s://%s%s\", want http:// or https:// and a host: %w",
				domain, hosts[i].Scheme, hosts[i].Host, strings.TrimSuffix(hosts[i].Path, "/v2"), errs.Invalid)
		}
		known[hosts[i].Host] = true
		if credentials.Bearer != "" && (hosts[i].Host == home || hosts[i].Host == domain) {
			hosts[i].Authorizer = bearer{hosts[i].Host, credentials.Bearer}
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
// which passwords are sent. It also refuses redirects to the node itself; see local.go.
type guarded struct {
	http.RoundTripper
	// known hosts may use their configured protocol, and have any address.
	known map[string]bool
	local *locality
	// proxy is the transport's, nil for none.
	proxy func(*http.Request) (*url.URL, error)
}

func guard(inner http.RoundTripper, known map[string]bool, local *locality) http.RoundTripper {
	g := guarded{RoundTripper: inner, known: known, local: local}
	if transport, ok := inner.(*http.Transport); ok {
		g.proxy = transport.Proxy
		transport.DialContext = g.dialer(transport.DialContext)
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
	return g.RoundTripper.RoundTrip(req.WithContext(context.WithValue(req.Context(), sentKey{}, s)))
}

// CloseIdleConnections closes connections that are kept for reuse.
func (g guarded) CloseIdleConnections() {
	if closer, ok := g.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}
