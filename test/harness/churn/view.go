package churn

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// view contains the API server's reports about the pods of a namespace: the last state of each pod,
// even if the pod is gone.
type view struct {
	core *rest.RESTClient

	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	gone    map[string]bool
	changed chan struct{} // closed at the next change
	version string        // the last one seen
}

func newView(core *rest.RESTClient) *view {
	return &view{core: core, pods: map[string]*corev1.Pod{}, gone: map[string]bool{}, changed: make(chan struct{})}
}

// follow keeps the view up to date until the context ends.
func (v *view) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		options := metav1.ListOptions{Watch: true, ResourceVersion: v.version, AllowWatchBookmarks: true}
		stream, err := v.core.Get().Namespace(namespace).Resource("pods").
			VersionedParams(&options, scheme.ParameterCodec).Watch(ctx)
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot watch pods: %w", err)
		}
		err = v.take(stream)
		stream.Stop()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (v *view) take(stream watch.Interface) error {
	for event := range stream.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("the watch of pods ended: %v", event.Object)
		}
		v.mu.Lock()
		v.version = pod.ResourceVersion
		if event.Type != watch.Bookmark {
			v.pods[pod.Name] = pod
			v.gone[pod.Name] = event.Type == watch.Deleted
			close(v.changed)
			v.changed = make(chan struct{})
		}
		v.mu.Unlock()
	}
	return nil
}

// await waits, three minutes at most (longer on a slow machine), until done returns true for a pod,
// and returns the pod. An error of done ends the wait.
func (v *view) await(ctx context.Context, name, what string, done func(pod *corev1.Pod, gone bool) (bool, error)) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, require.Patience(3*time.Minute))
	defer cancel()
	for {
		v.mu.Lock()
		pod, gone, changed := v.pods[name], v.gone[name], v.changed
		v.mu.Unlock()
		if pod != nil {
			ok, err := done(pod, gone)
			if err != nil {
				return pod, fmt.Errorf("while it waited for %s: %w", what, err)
			}
			if ok {
				return pod, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return pod, fmt.Errorf("timed out waiting for %s", what)
		}
	}
}

// last is the last state of a pod.
func (v *view) last(name string) *corev1.Pod {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pods[name]
}

// remove removes a pod that is gone from the view.
func (v *view) remove(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.pods, name)
	delete(v.gone, name)
}
