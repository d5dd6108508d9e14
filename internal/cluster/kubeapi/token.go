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

// secrets are those of the namespace that has the tokens that nodes join with.
const secrets = "/api/v1/namespaces/kube-system/secrets"

// AddToken lets nodes join with a token for some time, as `kubeadm token create` does.
func (c *Client) AddToken(ctx context.Context, token string, life time.Duration) error {
	id, secret, _ := strings.Cut(token, ".")
	body := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": map[string]string{"name": "bootstrap-token-" + id, "namespace": "kube-system"},
		"stringData": map[string]string{
			"token-id": id, "token-secret": secret, "expiration": time.Now().Add(life).UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			// The group that kubeadm lets join.
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		},
	}
	err := c.call(ctx, request{method: http.MethodPost, path: secrets, body: body}, nil)
	// One that is there is of a try whose answer was lost: the token is drawn by lot.
	if err != nil && !errors.Is(err, errs.Exists) {
		return fmt.Errorf("cannot make the token %s, which nodes join with: %w", id, err)
	}
	return nil
}
