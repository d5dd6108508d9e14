// Package kubeapi makes the API requests that creating and changing a cluster's nodes needs, on
// client-go's REST client.
package kubeapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/cluster/kubeapi/typedrest"
	"github.com/berthrun/berth/internal/errs"
)

// Client is a client of one API server.
type Client struct {
	api  rest.Interface
	http *http.Client
	// anonymous has no credentials.
	anonymous     rest.Interface
	anonymousHTTP *http.Client
	// pause is the time between two tries.
	pause time.Duration
}

// pause is short, since the API of a new cluster is up any moment.
const pause = 200 * time.Millisecond

// Dial opens a connection to an address, as net.Dialer's DialContext does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a client for the current context of a configuration. dial opens its connections; nil dials the server of the
// configuration. An invalid configuration is an error of kind errs.Invalid.
func New(config *api.Config, dial Dial) (*Client, error) {
	from, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, invalid(err)
	}
	from.QPS = -1 // no limit: a command makes few requests, and its user waits
	from.Dial = dial
	from.WarningHandler = rest.NoWarnings{}
	// The API is on this host or beside it. The proxies of the environment are for the way out.
	from.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	c := &Client{pause: pause}
	if c.http, err = rest.HTTPClientFor(from); err != nil {
		return nil, invalid(err)
	}
	if c.api, err = open(from, c.http); err != nil {
		return nil, invalid(err)
	}
	anonymous := rest.AnonymousClientConfig(from)
	if c.anonymousHTTP, err = rest.HTTPClientFor(anonymous); err != nil {
		return nil, invalid(err)
	}
	if c.anonymous, err = open(anonymous, c.anonymousHTTP); err != nil {
		return nil, invalid(err)
	}
	return c, nil
}

// Close closes idle connections. A client that is nil has none.
func (c *Client) Close() {
	if c != nil {
		c.http.CloseIdleConnections()
		c.anonymousHTTP.CloseIdleConnections()
	}
}

func open(config *rest.Config, client *http.Client) (rest.Interface, error) {
	return typedrest.New(config, client, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme, policyv1.AddToScheme)
}

func invalid(err error) error {
	return fmt.Errorf("cannot use the cluster's kubeconfig: %w: %w", errs.Invalid, err)
}
