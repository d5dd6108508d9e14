package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

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

// Kept are the texts of Keep. It is errs.NotFound that there are none.
func (c *Client) Kept(ctx context.Context, name string) (map[string]string, error) {
	var m configMap
	if err := c.call(ctx, request{method: http.MethodGet, path: configMaps + "/" + name}, &m); err != nil {
		return nil, fmt.Errorf("cannot read the ConfigMap %s: %w", name, err)
	}
	return m.Data, nil
}
