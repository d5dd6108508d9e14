package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// configMaps are those of the namespace that has what a cluster is made of.
const configMaps = "/api/v1/namespaces/kube-system/configmaps"

// configMap is a ConfigMap.
type configMap struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

// Keep has the cluster keep texts under a name, in a ConfigMap of kube-system, in place of those
// that it keeps already.
func (c *Client) Keep(ctx context.Context, name string, data map[string]string) error {
	m := configMap{APIVersion: "v1", Kind: "ConfigMap", Data: data}
	m.Metadata.Name = name
	err := c.call(ctx, request{method: http.MethodPut, path: configMaps + "/" + name, body: m}, nil)
	if errors.Is(err, errs.NotFound) {
		err = c.call(ctx, request{method: http.MethodPost, path: configMaps, body: m}, nil)
	}
	if err != nil {
		return fmt.Errorf("cannot write the ConfigMap %s: %w", name, err)
	}
	return nil
}

// infoPath is where a cluster tells those who are to join it what it is.
const infoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// AwaitSigned returns as soon as the controller manager has signed, with a token, what the
// cluster tells of itself. Until then kubeadm does not believe it, and asks again each five
// seconds only.
func (c *Client) AwaitSigned(ctx context.Context, token string) error {
	id, _, _ := strings.Cut(token, ".")
	for {
		var m configMap
		err := c.call(ctx, request{method: http.MethodGet, path: infoPath}, &m)
		if err == nil && m.Data["jws-kubeconfig-"+id] != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the ConfigMap kube-public/cluster-info is not signed with the token %s: %w", id, errors.Join(context.Cause(ctx), err))
		case <-time.After(c.pause):
		}
	}
}

// Kept are the texts of Keep. It is errs.NotFound that there are none.
func (c *Client) Kept(ctx context.Context, name string) (map[string]string, error) {
	var m configMap
	if err := c.call(ctx, request{method: http.MethodGet, path: configMaps + "/" + name}, &m); err != nil {
		return nil, fmt.Errorf("cannot read the ConfigMap %s: %w", name, err)
	}
	return m.Data, nil
}
