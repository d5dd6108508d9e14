// Package provisioner creates and removes the volumes of one node: directories, for the claims that
// the scheduler has assigned to the node. It runs in a pod on every node, so that each handles its
// own disk.
//
// All state is in the API: it serves a claim without a volume, removes a volume without its claim,
// and retries both until they succeed.
package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berthrun/berth/internal/cluster/storage"
	"github.com/berthrun/berth/internal/errs"
)

// resync is the time between two checks of all objects: the removal of a node does not change its
// claims and volumes.
const resync = 10 * time.Minute

// The pauses before a retry.
const (
	shortest = 500 * time.Millisecond
	longest  = time.Minute
)

// provisioner serves one node.
type provisioner struct {
	node string
	// dir is storage.Dir.
	dir *os.Root
	api api
	log *slog.Logger

	claims, volumes cache.Store
	queue           workqueue.TypedRateLimitingInterface[item]
}

// item is an object to check.
type item struct {
	kind string
	key  string // of its store
}

const (
	claimKind  = "PersistentVolumeClaim"
	volumeKind = "PersistentVolume"
)

// Run serves the node until the context ends. It is for a pod with an account that may do
// what storage.Manifest allows.
func Run(ctx context.Context, node string, log *slog.Logger) error {
	if node == "" {
		return fmt.Errorf("NODE_NAME is not set; want the name of the node: %w", errs.Invalid)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("cannot find the API of the cluster that this runs in: %w", err)
	}
	client, err := newClient(config)
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(storage.Dir)
	if err != nil {
		return fmt.Errorf("cannot open the directory of volumes: %w", err)
	}
	defer dir.Close()
	p := newProvisioner(node, dir, client, log)
	p.serve(ctx, client.core)
	return nil
}

func newProvisioner(node string, dir *os.Root, api api, log *slog.Logger) *provisioner {
	return &provisioner{
		node: node, dir: dir, api: api, log: log,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](shortest, longest)),
	}
}

// serve watches claims and volumes, and works on those that change.
func (p *provisioner) serve(ctx context.Context, core cache.Getter) {
	var claims, volumes cache.Controller
	p.claims, claims = p.watch(core, "persistentvolumeclaims", claimKind, &corev1.PersistentVolumeClaim{})
	p.volumes, volumes = p.watch(core, "persistentvolumes", volumeKind, &corev1.PersistentVolume{})
	go claims.RunWithContext(ctx)
	go volumes.RunWithContext(ctx)
	go func() {
		<-ctx.Done()
		p.queue.ShutDown()
	}()
	p.log.Info("serving claims", "node", p.node, "dir", storage.Dir)
	for p.next(ctx) {
	}
}

// watch keeps a store of all objects of a kind, and queues those that come or change.
func (p *provisioner) watch(core cache.Getter, resource, kind string, of runtime.Object) (cache.Store, cache.Controller) {
	add := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			p.queue.Add(item{kind, key})
		}
	}
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(core, resource, corev1.NamespaceAll, fields.Everything()),
		ObjectType:    of,
		ResyncPeriod:  resync,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    add,
			UpdateFunc: func(_, object any) { add(object) },
		},
	})
}

// next works on one item. It returns false when there will be no more.
func (p *provisioner) next(ctx context.Context) bool {
	it, end := p.queue.Get()
	if end {
		return false
	}
	defer p.queue.Done(it)
	if err := p.look(ctx, it); err != nil {
		if !errors.Is(err, context.Canceled) {
			p.log.Error("will be tried again", "kind", it.kind, "name", it.key, "error", err)
		}
		p.queue.AddRateLimited(it)
		return true
	}
	p.queue.Forget(it)
	return true
}

func (p *provisioner) look(ctx context.Context, it item) error {
	store := p.claims
	if it.kind == volumeKind {
		store = p.volumes
	}
	object, found, err := store.GetByKey(it.key)
	if err != nil || !found {
		return err
	}
	switch object := object.(type) {
	case *corev1.PersistentVolumeClaim:
		return p.claim(ctx, object)
	case *corev1.PersistentVolume:
		return p.volume(ctx, object)
	}
	return nil
}
