package podyaml

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// document is one of a file.
type document struct {
	text  []byte
	tree  map[string]any
	place place
}

// documents are those that pods refer to, in the file's order.
type documents struct {
	configMaps []*corev1.ConfigMap
	secrets    []*corev1.Secret
	claims     []*corev1.PersistentVolumeClaim
	volumes    []*corev1.PersistentVolume
	services   []*corev1.Service
	// places of each of them.
	places map[any]place
}

// split cuts a file at its lines "---". Each document begins with as many empty lines
// as stand before it, so that its lines have the file's numbers.
func split(data []byte) [][]byte {
	var docs [][]byte
	var doc []byte
	start := 0 // the line before the document
	flush := func() {
		if len(bytes.TrimSpace(doc)) > 0 {
			docs = append(docs, append(bytes.Repeat([]byte("\n"), start), doc...))
		}
		doc = nil
	}
	for n, line := range bytes.SplitAfter(data, []byte("\n")) {
		if isSeparator(line) {
			flush()
			start = n + 1
			continue
		}
		doc = append(doc, line...)
	}
	flush()
	return docs
}

// isSeparator tells of "---", which a comment may follow.
func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	rest = bytes.TrimSpace(rest)
	return ok && (len(rest) == 0 || rest[0] == '#')
}

// read returns nil for a document with nothing but comments.
func read(text []byte) (*document, error) {
	doc := &document{text: text}
	if err := yaml.Unmarshal(text, &doc.tree); err != nil {
		return nil, &Fault{Why: fmt.Sprintf("it is no YAML object: %v", err)}
	}
	if len(doc.tree) == 0 {
		return nil, nil
	}
	doc.place = placeOf(text)
	return doc, nil
}

func (d *document) kind() string {
	return fmt.Sprintf("%v %v", d.tree["apiVersion"], d.tree["kind"])
}

// decode refuses fields that the type does not have and values that their fields cannot hold,
// each by its path, and keys that stand twice.
func (d *document) decode(into any) error {
	_, secret := into.(*corev1.Secret)
	f := faults{place: d.place, secret: secret}
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return &Fault{Why: err.Error()}
	}
	strict, err := kjson.UnmarshalStrict(data, into)
	for _, unknown := range strict {
		var field kjson.FieldError
		if errors.As(unknown, &field) {
			f.list = append(f.list, &Fault{Line: d.place.line(field.FieldPath()), Why: unknown.Error()})
			continue
		}
		f.add("", "it is no %s: %v", d.kind(), unknown)
	}
	if err == nil {
		return f.err()
	}
	before := len(f.list)
	if f.misfits("", d.tree, reflect.TypeOf(into)); len(f.list) == before {
		f.add("", "it is no %s: %v", d.kind(), err)
	}
	return f.err()
}

// add takes a document that pods refer to; ok is false for another kind.
func (d *documents) add(doc *document) (ok bool, err error) {
	var into any
	switch doc.kind() {
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
	if err := doc.decode(into); err != nil {
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
	d.places[into] = doc.place
	return true, nil
}

// template is what makes pods: a copy of a pod for each of its replicas.
func template(doc *document) (*Workload, error) {
	w := &Workload{}
	var err error
	switch doc.kind() {
	case "v1 Pod":
		pod := &corev1.Pod{}
		err = doc.decode(pod)
		w.of(doc, pod.Name, pod.Namespace, "", &corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec})
	case "apps/v1 Deployment":
		d := &appsv1.Deployment{}
		err = doc.decode(d)
		w.of(doc, d.Name, d.Namespace, "spec.template.", &d.Spec.Template)
		w.replicas, w.selector = orOne(d.Spec.Replicas), d.Spec.Selector
		if d.Spec.Paused {
			w.suspended = "spec.paused"
		}
	case "apps/v1 ReplicaSet":
		r := &appsv1.ReplicaSet{}
		err = doc.decode(r)
		w.of(doc, r.Name, r.Namespace, "spec.template.", &r.Spec.Template)
		w.replicas, w.selector = orOne(r.Spec.Replicas), r.Spec.Selector
	case "v1 ReplicationController":
		r := &corev1.ReplicationController{}
		err = doc.decode(r)
		w.of(doc, r.Name, r.Namespace, "spec.template.", r.Spec.Template)
		w.replicas, w.selector = orOne(r.Spec.Replicas), &metav1.LabelSelector{MatchLabels: r.Spec.Selector}
	case "apps/v1 DaemonSet":
		d := &appsv1.DaemonSet{}
		err = doc.decode(d)
		w.of(doc, d.Name, d.Namespace, "spec.template.", &d.Spec.Template)
		w.selector = d.Spec.Selector
	case "apps/v1 StatefulSet":
		s := &appsv1.StatefulSet{}
		err = doc.decode(s)
		w.of(doc, s.Name, s.Namespace, "spec.template.", &s.Spec.Template)
		w.stateful(s)
	case "batch/v1 Job":
		j := &batchv1.Job{}
		err = doc.decode(j)
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

// podTree is the part of a document that says what its pods are.
func (d *document) podTree(prefix string) map[string]any {
	tree := d.tree
	for _, step := range steps(prefix) {
		tree, _ = tree[step].(map[string]any)
	}
	return maps.Clone(tree)
}
