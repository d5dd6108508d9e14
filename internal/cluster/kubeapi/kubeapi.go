// Package kubeapi makes the API requests that creating and changing a cluster's nodes needs, on
// client-go's REST client.
package kubeapi

import (
	"fmt"
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
	anonymous rest.Interface
	// pause is the time between two tries.
	pause time.Duration
}

// pause is short, since the API of a new cluster is up any moment.
const pause = 200 * time.Millisecond

// New returns a client for the current context of a configuration. An invalid configuration is an
// error of kind errs.Invalid.
func New(config *api.Config) (*Client, error) {
	from, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, invalid(err)
	}
	from.QPS = -1 // no limit: a command makes few requests, and its user waits
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
	if c.anonymous, err = open(rest.AnonymousClientConfig(from), nil); err != nil {
		return nil, invalid(err)
	}
	return c, nil
}

func open(config *rest.Config, client *http.Client) (rest.Interface, error) {
	return typedrest.New(config, client, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme, policyv1.AddToScheme)
}

func invalid(err error) error {
	return fmt.Errorf("cannot use the cluster's kubeconfig: %w: %w", errs.Invalid, err)
}
