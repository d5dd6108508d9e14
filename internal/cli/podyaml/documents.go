package podyaml

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
)

// documents are those that pods refer to, in the file's order.
type documents struct {
	configMaps []*corev1.ConfigMap
	secrets    []*corev1.Secret
	claims     []*corev1.PersistentVolumeClaim
	volumes    []*corev1.PersistentVolume
	services   []*corev1.Service
	// places of each of them.
	places map[any]document.Place
}

// add takes a document that pods refer to; ok is false for another kind.
func (d *documents) add(doc *document.Document) (ok bool, err error) {
	var into any
	switch doc.Kind() {
	case "v1 ConfigMap":
		m := &corev1.ConfigMap{}
		d.configMaps, into = append(d.configMaps, m), m
	case "v1 Secret":
		s := &corev1.Secret{}
		d.secrets, into = append(d.secrets, s), s
	case "v1 PersistentVolumeClaim":
		c := &corev1.PersistentVolumeClaim{}
		d.claims, into = append(d.claims, c), c
	case "v1 PersistentVolume":
		v := &corev1.PersistentVolume{}
		d.volumes, into = append(d.volumes, v), v
	case "v1 Service":
		s := &corev1.Service{}
		d.services, into = append(d.services, s), s
	default:
		return false, nil
	}
	if err := doc.Decode(into); err != nil {
		return true, err
	}
	if s, isSecret := into.(*corev1.Secret); isSecret {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		for name, value := range s.StringData {
			s.Data[name] = []byte(value)
		}
	}
	d.places[into] = doc.Place
	return true, nil
}

// clusterOnly are kinds that only a cluster does something with: a file that has them
// runs without them.
func clusterOnly() map[string]bool {
	return map[string]bool{
		"v1 Namespace": true, "v1 ServiceAccount": true, "batch/v1 CronJob": true,
		"storage.k8s.io/v1 StorageClass": true, "scheduling.k8s.io/v1 PriorityClass": true,
		"policy/v1 PodDisruptionBudget": true, "autoscaling/v2 HorizontalPodAutoscaler": true,
		"networking.k8s.io/v1 Ingress": true, "networking.k8s.io/v1 IngressClass": true,
		"rbac.authorization.k8s.io/v1 Role": true, "rbac.authorization.k8s.io/v1 RoleBinding": true,
		"rbac.authorization.k8s.io/v1 ClusterRole": true, "rbac.authorization.k8s.io/v1 ClusterRoleBinding": true,
		"autoscaling/v1 HorizontalPodAutoscaler": true, "v1 LimitRange": true, "v1 ResourceQuota": true,
	}
}
