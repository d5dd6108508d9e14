package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
)

// Read reads what makes pods: a copy of a pod for each of its replicas.
func Read(doc *document.Document) (*Workload, error) {
	w := &Workload{}
	var err error
	switch doc.Kind() {
	case "v1 Pod":
		pod := &corev1.Pod{}
		err = doc.Decode(pod)
		w.of(doc, pod.Name, pod.Namespace, "", &corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec})
	case "apps/v1 Deployment":
		d := &appsv1.Deployment{}
		err = doc.Decode(d)
		w.of(doc, d.Name, d.Namespace, "spec.template.", &d.Spec.Template)
		w.replicas, w.selector = orOne(d.Spec.Replicas), d.Spec.Selector
		if d.Spec.Paused {
			w.Suspended = "spec.paused"
		}
	case "apps/v1 ReplicaSet":
		r := &appsv1.ReplicaSet{}
		err = doc.Decode(r)
		w.of(doc, r.Name, r.Namespace, "spec.template.", &r.Spec.Template)
		w.replicas, w.selector = orOne(r.Spec.Replicas), r.Spec.Selector
	case "v1 ReplicationController":
		r := &corev1.ReplicationController{}
		err = doc.Decode(r)
		w.of(doc, r.Name, r.Namespace, "spec.template.", r.Spec.Template)
		w.replicas, w.selector = orOne(r.Spec.Replicas), &metav1.LabelSelector{MatchLabels: r.Spec.Selector}
	case "apps/v1 DaemonSet":
		d := &appsv1.DaemonSet{}
		err = doc.Decode(d)
		w.of(doc, d.Name, d.Namespace, "spec.template.", &d.Spec.Template)
		w.selector = d.Spec.Selector
	case "apps/v1 StatefulSet":
		s := &appsv1.StatefulSet{}
		err = doc.Decode(s)
		w.of(doc, s.Name, s.Namespace, "spec.template.", &s.Spec.Template)
		w.stateful(s)
	case "batch/v1 Job":
		j := &batchv1.Job{}
		err = doc.Decode(j)
		w.of(doc, j.Name, j.Namespace, "spec.template.", &j.Spec.Template)
		if err == nil {
			err = w.job(j)
		}
	default:
		return nil, nil
	}
	return w, err
}

func orOne(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}
