// Package podyaml turns Kubernetes Pod YAML into CRI configurations.
//
// It is pure: it reads no file, asks no runtime and makes nothing. A field that
// `berth pod run` does not honour is a fault that names line and field. Only what
// concerns the choice of a node is ignored, with a note.
package podyaml

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Manifest is what a file of YAML documents asks for.
type Manifest struct {
	// Workloads are what makes pods, in the file's order; there is one at least.
	Workloads []*Workload
	// Services are where pods find each other.
	Services []*Service
	// Notes say, a line each, what of the file has no effect here.
	Notes []string
}

// Pods lists the pods of all workloads, in the file's order.
func (f *Manifest) Pods() []*Bundle {
	var pods []*Bundle
	for _, w := range f.Workloads {
		pods = append(pods, w.Pods...)
	}
	return pods
}

// Bundle is one pod with the documents that it refers to.
type Bundle struct {
	// Pod with its defaults filled in.
	Pod *corev1.Pod
	// ConfigMaps and Secrets of the pod's namespace, by name.
	ConfigMaps map[string]*corev1.ConfigMap
	Secrets    map[string]*corev1.Secret
	// Handler is the runtime class, "" for the default.
	Handler string
	// claims are where the pod's claims are bound to, by name: volumes of the file.
	claims map[string]*corev1.PersistentVolume
	place  place
}

// Parse reads a file of YAML documents: Pods and what makes pods, and the ConfigMaps,
// Secrets, claims, volumes and Services that belong to them. All faults are reported
// together, each with kind Invalid.
func Parse(data []byte) (*Manifest, error) {
	file := &Manifest{}
	docs := &documents{places: map[any]place{}}
	var failed []error
	ignored := &notes{}
	for _, text := range split(data) {
		doc, err := read(text)
		if err != nil {
			return nil, err
		}
		if doc != nil {
			failed = append(failed, file.add(docs, doc, ignored))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	if len(file.Workloads) == 0 {
		return nil, fmt.Errorf("there is no document of kind Pod, nor one that makes pods: %w", errs.Invalid)
	}
	for _, w := range file.Workloads {
		failed = append(failed, w.expand(docs))
	}
	failed = append(failed, file.checkNames(), file.checkNamespaces(docs))
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	services, err := file.serve(docs, ignored)
	if err != nil {
		return nil, err
	}
	file.Services, file.Notes = services, ignored.lines()
	return file, nil
}

func (f *Manifest) add(docs *documents, doc *document, ignored *notes) error {
	if taken, err := docs.add(doc); taken {
		if err == nil {
			err = checkKind(doc, ignored)
		}
		return err
	}
	w, err := template(doc)
	if err != nil {
		return err
	}
	if w == nil {
		if clusterOnly()[doc.kind()] {
			ignored.kind(doc)
			return nil
		}
		return &Fault{Line: doc.place.line("kind"), Field: "kind", Why: fmt.Sprintf("%q is not run here", doc.kind())}
	}
	err = errors.Join(checkKind(doc, ignored), checkHonoured(doc.podTree(w.place.prefix), w.place, w.Kind != "Pod", ignored))
	if err != nil {
		return err
	}
	if w.suspended != "" {
		ignored.add(fmt.Sprintf("line %d: %s makes no pods, because of %s", doc.place.line(w.suspended), w, w.suspended))
		return nil
	}
	f.Workloads = append(f.Workloads, w)
	return nil
}

// checkNames refuses two pods of one name.
func (f *Manifest) checkNames() error {
	seen := map[string]bool{}
	var failed []error
	for _, b := range f.Pods() {
		name := b.Pod.Namespace + "/" + b.Pod.Name
		if seen[name] {
			failed = append(failed, &Fault{
				Line: b.place.line("metadata.name"), Field: "metadata.name", Why: fmt.Sprintf("%q is the name of two pods", name),
			})
		}
		seen[name] = true
	}
	return errors.Join(failed...)
}

// checkNamespaces refuses documents that no pod of the file could see in a cluster.
func (f *Manifest) checkNamespaces(docs *documents) error {
	var failed []error
	check := func(kind string, of any, name, namespace string) {
		visible := slices.ContainsFunc(f.Pods(), func(b *Bundle) bool { return sameNamespace(namespace, b.Pod.Namespace) })
		if visible {
			return
		}
		var others []string
		for _, b := range f.Pods() {
			others = append(others, b.Pod.Namespace)
		}
		failed = append(failed, &Fault{
			Line: docs.places[of].line("metadata.namespace"), Field: "metadata.namespace",
			Why: fmt.Sprintf("%s %s is in namespace %s, the pod in %s", kind, name, namespace, strings.Join(slices.Compact(others), ", ")),
		})
	}
	for _, m := range docs.configMaps {
		check("ConfigMap", m, m.Name, m.Namespace)
	}
	for _, s := range docs.secrets {
		check("Secret", s, s.Name, s.Namespace)
	}
	for _, c := range docs.claims {
		check("PersistentVolumeClaim", c, c.Name, c.Namespace)
	}
	if len(f.Pods()) == 0 {
		return nil
	}
	return errors.Join(failed...)
}

// sameNamespace takes a document that names no namespace as the pod's.
func sameNamespace(document, pod string) bool { return document == "" || document == pod }

// bundle makes one pod of the file: with the documents of its namespace.
func (d *documents) bundle(pod *corev1.Pod, at place) (*Bundle, error) {
	b := &Bundle{Pod: pod, ConfigMaps: map[string]*corev1.ConfigMap{}, Secrets: map[string]*corev1.Secret{}, place: at}
	setDefaults(pod)
	for _, m := range d.configMaps {
		if sameNamespace(m.Namespace, pod.Namespace) {
			b.ConfigMaps[m.Name] = m
		}
	}
	for _, s := range d.secrets {
		if sameNamespace(s.Namespace, pod.Namespace) {
			b.Secrets[s.Name] = s
		}
	}
	if err := b.bindClaims(d); err != nil {
		return nil, err
	}
	if pod.Spec.RuntimeClassName != nil {
		b.Handler = *pod.Spec.RuntimeClassName
	}
	return b, b.validate()
}
