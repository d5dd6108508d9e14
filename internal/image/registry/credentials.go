package registry

import (
	"context"
	"net/http"
	"sync"

	"github.com/berthrun/berth/internal/image/registry/keyring"
)

// credentials are those for the endpoints of one domain. Those of a request are for the registry in
// the image's name only; the node's own are for the host that they name, a mirror too.
type credentials struct {
	ctx          context.Context //nolint:containedctx // containerd's callback has none
	domain, home string
	request      Credentials
	keys         *keyring.Ring

	mu sync.Mutex
	// sent are secrets of the node, which errors must not contain.
	sent []keyring.Secret
	// asked are the hosts for which there were credentials when they were needed.
	asked map[string]bool
}

// isHome reports whether a host is the registry in the image's name.
func (c *credentials) isHome(host string) bool { return host == c.home || host == c.domain }

// ofRequest reports whether the request has credentials for a host.
func (c *credentials) ofRequest(host string) bool {
	return c.isHome(host) && c.request != Credentials{}
}

// ofNode returns the node's credential for a host, nil for none.
func (c *credentials) ofNode(host string) *keyring.Credential {
	if c.ofRequest(host) {
		return nil
	}
	return c.keys.Find(host)
}

// basic returns name and password for a host that demands them.
func (c *credentials) basic(host string) (user, secret string, err error) {
	if c.ofRequest(host) {
		c.had(host, c.request.Secret)
		return c.request.User, c.request.Secret, nil
	}
	found := c.ofNode(host)
	if found == nil {
		return "", "", nil
	}
	s, err := found.Get(c.ctx)
	if err != nil {
		return "", "", err
	}
	c.note(s)
	c.had(host, s.Password)
	return s.User, s.Password, nil
}

// bearer returns the token that is sent to a host as it is, "" for none. It runs no helper.
func (c *credentials) bearer(host string) (string, error) {
	if c.ofRequest(host) {
		c.had(host, c.request.Bearer)
		return c.request.Bearer, nil
	}
	found := c.ofNode(host)
	if found == nil || found.Helper != "" {
		return "", nil
	}
	s, err := found.Get(c.ctx)
	if err != nil {
		return "", err
	}
	c.note(s)
	c.had(host, s.Bearer)
	return s.Bearer, nil
}

// had notes that there was a secret for a host, unless it is "".
func (c *credentials) had(host, secret string) {
	if secret == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = map[string]bool{}
	}
	c.asked[host] = true
}

// used says whose credentials an endpoint has got, "" for none. where is where the endpoint is written.
func (c *credentials) used(e *endpoint, where string) string {
	c.mu.Lock()
	asked := c.asked[e.Host]
	c.mu.Unlock()
	key := c.ofNode(e.Host)
	switch {
	case asked && c.ofRequest(e.Host):
		return "the request"
	case asked && key != nil:
		return key.String()
	case e.hasAuthorization():
		return "the header Authorization of " + where
	}
	return ""
}

// hasAuthorization reports whether hosts.toml has credentials for an endpoint.
func (e *endpoint) hasAuthorization() bool {
	for name := range e.Header {
		if http.CanonicalHeaderKey(name) == "Authorization" {
			return true
		}
	}
	return false
}

func (c *credentials) note(s keyring.Secret) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, s)
}

// scrub removes the node's secrets from an error, and its type. Those of the request are removed with
// Scrub, where the request ends.
func (c *credentials) scrub(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sent {
		err = Scrub(err, Auth{Username: s.User, Password: s.Password, RegistryToken: s.Bearer})
	}
	return err
}
