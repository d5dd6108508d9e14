package assets

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"github.com/berthrun/berth/internal/credential"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// maxRedirects is how many redirects a request may follow.
const maxRedirects = 10

// reach is how requests reach the servers of one asset.
type reach struct {
	client *http.Client
	// secure: certificates were named, so loopback uses TLS, too.
	secure bool
	file   string // of the credentials, "" for none
	said   credential.File
	own    string // origin of the server that the credentials are for
}

// reach reads the files that an asset's access names.
func (s *Store) reach(ref provision.AssetRef) (reach, error) {
	a := ref.Access
	r := reach{secure: len(a.CA) > 0 || a.ClientCert != "", file: a.Credentials}
	var err error
	if r.client, err = s.clientFor(a); err != nil {
		return r, err
	}
	if a.Credentials == "" {
		return r, nil
	}
	text, err := readOwn(a.Credentials)
	if err != nil {
		return r, fmt.Errorf("credentials: %w", err)
	}
	if r.said, err = credential.Parse(a.Credentials, string(text)); err != nil {
		return r, err
	}
	r.own = origin(ref.FirstServer())
	return r, nil
}

// origin is the scheme and host of a URL. Credentials belong to an origin.
func origin(source string) string {
	scheme, rest, _ := strings.Cut(source, "://")
	host, _, _ := strings.Cut(rest, "/")
	return strings.ToLower(scheme + "://" + credential.Host(host))
}

// header is the Authorization header for a source, "" for none.
func (r reach) header(source string) string {
	at := origin(source)
	_, host, _ := strings.Cut(at, "://")
	return r.said.Header(host, at == r.own)
}

// refused says what to do about a server that demands authentication.
func (r reach) refused(header string) string {
	switch {
	case r.file == "":
		return "; if it demands authentication, name a file in credentials"
	case header == "":
		return "; " + r.file + " has no credentials for it"
	}
	return "; it does not take the credentials of " + r.file
}

// registries authenticates to a registry. If the registry demands tokens, its token server issues
// them for the credentials; a "Bearer" of the file is a token.
func (r reach) registries(header string) docker.RegistryHosts {
	_, registry, _ := strings.Cut(r.own, "://")
	authorizer := docker.NewDockerAuthorizer(docker.WithAuthClient(r.client), docker.WithAuthCreds(func(host string) (string, string, error) {
		if credential.Host(host) != registry && r.said.Header(host, false) == "" {
			return "", "", nil // the target of a redirect
		}
		user, password, _ := credential.Basic(header)
		return user, password, nil
	}))
	hosts := docker.ConfigureDefaultRegistries(docker.WithClient(r.client), docker.WithAuthorizer(authorizer), docker.WithPlainHTTP(
		func(host string) (bool, error) {
			local, err := docker.MatchLocalhost(host)
			return local && !r.secure, err
		}))
	return func(host string) ([]docker.RegistryHost, error) {
		list, err := hosts(host)
		for i := range list {
			if strings.HasPrefix(header, "Bearer ") {
				list[i].Header, list[i].Authorizer = http.Header{"Authorization": {header}}, nil
			}
		}
		return list, err
	}
}

// clientFor returns the one client for the certificates that an access names.
func (s *Store) clientFor(a provision.Access) (*http.Client, error) {
	key := strings.Join(append([]string{a.ClientCert, a.ClientKey}, a.CA...), "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	if client := s.clients[key]; client != nil {
		return client, nil
	}
	config, err := tlsConfig(a)
	if err != nil {
		return nil, err
	}
	s.clients[key] = newClient(config)
	return s.clients[key], nil
}

// tlsConfig trusts what the machine trusts, and the authorities of an access.
func tlsConfig(a provision.Access) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(a.CA) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool() // a machine may have none
		}
		for _, name := range a.CA {
			pem, err := readOwn(name)
			if err != nil {
				return nil, fmt.Errorf("ca: %w", err)
			}
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("ca: %s has no certificate in PEM: %w", name, errs.Invalid)
			}
		}
		config.RootCAs = pool
	}
	if a.ClientCert != "" {
		key := a.ClientKey
		if key == "" {
			key = a.ClientCert
		}
		pair, err := tls.LoadX509KeyPair(a.ClientCert, key)
		if err != nil {
			return nil, fmt.Errorf("clientCert: cannot read %s and its key: %w: %w", a.ClientCert, errs.Invalid, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func newClient(config *tls.Config) *http.Client {
	return &http.Client{
		CheckRedirect: onRedirect,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: headerTimeout}).DialContext,
			TLSClientConfig:       config,
			TLSHandshakeTimeout:   headerTimeout,
			ResponseHeaderTimeout: headerTimeout,
			ForceAttemptHTTP2:     true,
		},
	}
}

// onRedirect drops the credentials when a redirect leads to another server, or to the same server
// without TLS. Go's own client compares the host name alone.
func onRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("it redirects more than %d times: %w", maxRedirects, errs.Invalid)
	}
	if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		req.Header.Del("Authorization")
	}
	return nil
}

// readOwn reads a small file of the machine where berth runs.
func readOwn(name string) ([]byte, error) {
	const limit = 1 << 20
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errs.NotFound, err)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes: %w", name, limit, errs.Invalid)
	}
	return os.ReadFile(name)
}

// unanswered is the error for a request that had no answer. It leaves out the URL: the caller names
// the source, and a redirect's URL may be signed.
func unanswered(err error) error {
	err = bare(err)
	if of := (*tls.CertificateVerificationError)(nil); errors.As(err, &of) {
		return fmt.Errorf("%w; name the authority that signs for the server by ca: %w", of.Err, errs.Invalid)
	}
	return fmt.Errorf("%w: %w", errs.Unavailable, err)
}

// bare is an error without the URL that net/http puts before it: we name the source.
func bare(err error) error {
	if of := (*url.Error)(nil); errors.As(err, &of) {
		return of.Err
	}
	return err
}
