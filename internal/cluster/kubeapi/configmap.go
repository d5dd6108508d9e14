package kubeapi

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berthrun/berth/internal/errs"
)

const configMaps = "configmaps"

// WriteConfigMap writes a ConfigMap of kube-system. data replaces what the ConfigMap had.
func (c *Client) WriteConfigMap(ctx context.Context, name string, data map[string]string) error {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	err := c.call(ctx, func(api rest.Interface) *rest.Request {
		return api.Put().Namespace(metav1.NamespaceSystem).Resource(configMaps).Name(name).Body(m)
	}, nil)
	if errors.Is(err, errs.NotFound) {
		err = c.call(ctx, func(api rest.Interface) *rest.Request {
			return api.Post().Namespace(metav1.NamespaceSystem).Resource(configMaps).Body(m)
		}, nil)
	}
	if err != nil {
		return fmt.Errorf("cannot write the ConfigMap %s: %w", name, err)
	}
	return nil
}

// ReadConfigMap returns the data of a ConfigMap of kube-system. The error is errs.NotFound where
// there is none.
func (c *Client) ReadConfigMap(ctx context.Context, name string) (map[string]string, error) {
	var m corev1.ConfigMap
	err := c.call(ctx, func(api rest.Interface) *rest.Request {
		return api.Get().Namespace(metav1.NamespaceSystem).Resource(configMaps).Name(name)
	}, &m)
	if err != nil {
		return nil, fmt.Errorf("cannot read the ConfigMap %s: %w", name, err)
	}
	return m.Data, nil
}
