package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/berthrun/berth/internal/errs"
)

// joiners is the group that kubeadm allows to join nodes.
const joiners = "system:bootstrappers:kubeadm:default-node-token"

// AddBootstrapToken creates a bootstrap token, with which nodes can join for some time, as
// `kubeadm token create` does. A token is "id.secret".
func (c *Client) AddBootstrapToken(ctx context.Context, token string, life time.Duration) error {
	id, secret, _ := strings.Cut(token, ".")
	object := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrap.BootstrapTokenSecretPrefix + id, Namespace: metav1.NamespaceSystem},
		Type:       bootstrap.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrap.BootstrapTokenIDKey: id, bootstrap.BootstrapTokenSecretKey: secret,
			bootstrap.BootstrapTokenExpirationKey:       time.Now().Add(life).UTC().Format(time.RFC3339),
			bootstrap.BootstrapTokenUsageAuthentication: "true", bootstrap.BootstrapTokenUsageSigningKey: "true",
			bootstrap.BootstrapTokenExtraGroupsKey: joiners,
		},
	}
	err := c.call(ctx, func(api rest.Interface) *rest.Request {
		return api.Post().Namespace(metav1.NamespaceSystem).Resource("secrets").Body(object)
	}, nil)
	// Tokens are random. If it exists, a try whose response was lost created it.
	if err != nil && !errors.Is(err, errs.Exists) {
		return fmt.Errorf("cannot create the bootstrap token %s: %w", id, err)
	}
	return nil
}

func clusterInfo(r *rest.Request) *rest.Request {
	return r.Namespace(metav1.NamespacePublic).Resource(configMaps).Name(bootstrap.ConfigMapClusterInfo)
}

func getClusterInfo(api rest.Interface) *rest.Request { return clusterInfo(api.Get()) }

// SignClusterInfo signs the ConfigMap kube-public/cluster-info with a bootstrap token, as the
// controller manager does some seconds after the cluster has started. kubeadm trusts the ConfigMap
// only when it is signed, and checks every five seconds.
func (c *Client) SignClusterInfo(ctx context.Context, token string) error {
	id, secret, _ := strings.Cut(token, ".")
	if err := c.signClusterInfo(ctx, id, secret); err != nil {
		return fmt.Errorf("cannot sign the ConfigMap kube-public/cluster-info with the token %s: %w", id, err)
	}
	return nil
}

func (c *Client) signClusterInfo(ctx context.Context, id, secret string) error {
	var info corev1.ConfigMap
	if err := c.call(ctx, getClusterInfo, &info); err != nil {
		return err
	}
	signature, err := jws.ComputeDetachedSignature(info.Data[bootstrap.KubeConfigKey], id, secret)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{bootstrap.JWSSignatureKeyPrefix + id: signature}})
	if err != nil {
		return err
	}
	return c.call(ctx, func(api rest.Interface) *rest.Request {
		return clusterInfo(api.Patch(types.MergePatchType)).Body(patch)
	}, nil)
}
