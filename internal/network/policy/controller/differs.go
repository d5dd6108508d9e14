package controller

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berthrun/berth/internal/network/policy"
)

// differs reports whether an object has changed in what policies know of it. Most changes of pods are
// others: conditions, and states of containers.
func differs(old, now any) bool {
	switch was := old.(type) {
	case *corev1.Pod:
		before, known := policy.PodOf(was)
		after, stays := policy.PodOf(now.(*corev1.Pod))
		return known != stays || known && !reflect.DeepEqual(before, after)
	case *corev1.Namespace:
		return !maps.Equal(was.Labels, now.(*corev1.Namespace).Labels)
	case *networkingv1.NetworkPolicy:
		return !reflect.DeepEqual(was.Spec, now.(*networkingv1.NetworkPolicy).Spec)
	}
	return true
}
