package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berthrun/berth/internal/errs"
)

// Drain cordons a node and evicts its pods, as `kubectl drain` does, within their disruption
// budgets. It returns when the pods have ended. If the context ends before, the error names those
// that have not.
func (c *Client) Drain(ctx context.Context, node string) error {
	if err := c.Cordon(ctx, node); err != nil {
		return err
	}
	refused := map[string]string{}
	var left []corev1.Pod
	for {
		now, err := c.evict(ctx, node, refused)
		switch {
		case err == nil && len(now) == 0:
			return nil
		case len(now) > 0:
			left = now
		}
		if err != nil && !errors.Is(err, errs.Unavailable) && ctx.Err() == nil {
			return fmt.Errorf("cannot drain the node %s: %w", node, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot drain the node %s in time: %s: %w", node, remaining(left, refused), errors.Join(context.Cause(ctx), err))
		case <-time.After(2 * c.pause):
		}
	}
}

// evict requests the eviction of each pod that is not being deleted yet. It returns the pods that
// have not ended, and adds to refused why the server refuses an eviction.
func (c *Client) evict(ctx context.Context, node string, refused map[string]string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := c.call(ctx, func(api rest.Interface) *rest.Request {
		return api.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node)
	}, &list)
	if err != nil {
		return nil, err
	}
	left := slices.DeleteFunc(list.Items, staysWithNode)
	for i := range left {
		p := &left[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		err := c.call(ctx, func(api rest.Interface) *rest.Request {
			return api.Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").Body(evictionOf(p))
		}, nil)
		switch {
		case errors.Is(err, errs.Exhausted):
			refused[fullName(p)] = " (its disruption budget does not allow it)" // yet
		case err == nil, errors.Is(err, errs.NotFound), errors.Is(err, errs.Exists):
			delete(refused, fullName(p))
		default:
			return left, err
		}
	}
	return left, nil
}

func evictionOf(p *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		// Another pod of this name may run elsewhere by now.
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	}
}

func fullName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

// staysWithNode reports whether a drain leaves a pod: a static pod, a pod of a DaemonSet, or one
// that has ended.
func staysWithNode(p corev1.Pod) bool {
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	ofDaemonSet := slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
	return static || ofDaemonSet || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// remaining names pods, with why they have not ended.
func remaining(pods []corev1.Pod, refused map[string]string) string {
	if len(pods) == 0 {
		return "it is not known which pods are on it"
	}
	var names []string
	for i := range pods {
		names = append(names, fullName(&pods[i])+refused[fullName(&pods[i])])
	}
	return strings.Join(names, ", ") + " have not ended"
}
