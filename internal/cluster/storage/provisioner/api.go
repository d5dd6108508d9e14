package provisioner

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berthrun/berth/internal/cluster/kubeapi/typedrest"
)

// api has the requests to the API server; its errors are the server's.
type api interface {
	Class(ctx context.Context, name string) (*storagev1.StorageClass, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
	UpdateClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error
	CreateVolume(ctx context.Context, v *corev1.PersistentVolume) error
	UpdateVolume(ctx context.Context, v *corev1.PersistentVolume) error
	DeleteVolume(ctx context.Context, name string, uid types.UID) error
	CreateEvent(ctx context.Context, e *corev1.Event) error
}

// client is a client of the API server, with a REST client of client-go for each API group.
type client struct{ core, storage rest.Interface }

var _ api = client{}

func newClient(config *rest.Config) (client, error) {
	core, err := typedrest.New(config, nil, "/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
	if err != nil {
		return client{}, fmt.Errorf("cannot use the API of the cluster: %w", err)
	}
	storage, err := typedrest.New(config, nil, "/apis", storagev1.SchemeGroupVersion, storagev1.AddToScheme)
	if err != nil {
		return client{}, fmt.Errorf("cannot use the API of the cluster: %w", err)
	}
	return client{core, storage}, nil
}

func (c client) Class(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{}
	return class, c.storage.Get().Resource("storageclasses").Name(name).Do(ctx).Into(class)
}

func (c client) Node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, c.core.Get().Resource("nodes").Name(name).Do(ctx).Into(node)
}

func (c client) UpdateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	return c.core.Put().Namespace(claim.Namespace).Resource("persistentvolumeclaims").Name(claim.Name).Body(claim).Do(ctx).Error()
}

func (c client) CreateVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	return c.core.Post().Resource("persistentvolumes").Body(v).Do(ctx).Error()
}

func (c client) UpdateVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	return c.core.Put().Resource("persistentvolumes").Name(v.Name).Body(v).Do(ctx).Error()
}

func (c client) DeleteVolume(ctx context.Context, name string, uid types.UID) error {
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	return c.core.Delete().Resource("persistentvolumes").Name(name).Body(options).Do(ctx).Error()
}

func (c client) CreateEvent(ctx context.Context, e *corev1.Event) error {
	return c.core.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
}
