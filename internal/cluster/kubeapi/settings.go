package kubeapi

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

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

// SignInfo signs, with a token, what the cluster tells of itself, as the controller manager does
// some seconds after a cluster's begin: until then kubeadm does not believe it, and asks again
// each five seconds only. Both write the same: a detached JWS (RFC 7515, appendix F) of HS256.
func (c *Client) SignInfo(ctx context.Context, token string) error {
	id, secret, _ := strings.Cut(token, ".")
	var m configMap
	err := c.call(ctx, request{method: http.MethodGet, path: infoPath}, &m)
	if err == nil {
		data := map[string]string{"jws-kubeconfig-" + id: detachedSignature(m.Data["kubeconfig"], id, secret)}
		err = c.call(ctx, request{method: http.MethodPatch, path: infoPath, kind: mergePatch, body: map[string]any{"data": data}}, nil)
	}
	if err != nil {
		return fmt.Errorf("cannot sign the ConfigMap kube-public/cluster-info with the token %s: %w", id, err)
	}
	return nil
}

// detachedSignature is compared letter by letter, so the header is as Kubernetes writes it.
func detachedSignature(content, id, secret string) string {
	encode := base64.RawURLEncoding.EncodeToString
	header := encode([]byte(`{"alg":"HS256","kid":"` + id + `"}`))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(header + "." + encode([]byte(content)))) // it never fails
	return header + ".." + encode(mac.Sum(nil))
}

// Kept are the texts of Keep. It is errs.NotFound that there are none.
func (c *Client) Kept(ctx context.Context, name string) (map[string]string, error) {
	var m configMap
	if err := c.call(ctx, request{method: http.MethodGet, path: configMaps + "/" + name}, &m); err != nil {
		return nil, fmt.Errorf("cannot read the ConfigMap %s: %w", name, err)
	}
	return m.Data, nil
}
