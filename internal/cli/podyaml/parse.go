// Package podyaml turns Kubernetes Pod YAML into CRI configurations.
//
// It is pure: it reads no file, calls no runtime and creates nothing. A field that `berth pod run`
// does not honour is a fault that names line and field. Only what concerns the choice of a node is
// ignored, with a note.
package podyaml

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/fields"
	"github.com/berthrun/berth/internal/cli/podyaml/workload"
	"github.com/berthrun/berth/internal/errs"
)

// Workload is a Pod, or what makes pods from a template, with its pods.
type Workload struct {
	*workload.Workload
	// Pods in the order of their ordinals. A Pod document has one.
	Pods []*Bundle
}

// Manifest is the content of a file of YAML documents.
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

// Parse reads a file of YAML documents: Pods and what makes pods, and the ConfigMaps,
// Secrets, claims, volumes and Services that belong to them. All faults are reported
// together, each with kind Invalid.
func Parse(data []byte) (*Manifest, error) {
	file := &Manifest{}
	docs := &documents{places: map[any]document.Place{}}
	var failed []error
	ignored := &document.Notes{}
	for _, text := range document.Split(data) {
		doc, err := document.Read(text)
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
		failed = append(failed, docs.expand(w))
	}
	failed = append(failed, file.checkNames(), file.checkNamespaces(docs))
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	services, err := file.serve(docs, ignored)
	if err != nil {
		return nil, err
	}
	file.Services, file.Notes = services, ignored.Lines()
	return file, nil
}

// unknownKind is the fault of a document that names none of the kinds that berth knows.
func unknownKind(doc *document.Document) error {
	for _, key := range []string{"apiVersion", "kind"} {
		if value, _ := doc.Tree[key].(string); value == "" {
			return &document.Fault{Line: doc.Place.Line(key), Field: key, Why: "it is missing; a pod has apiVersion: v1 and kind: Pod"}
		}
	}
	return &document.Fault{Line: doc.Place.Line("kind"), Field: "kind", Why: fmt.Sprintf("berth does not run %q", doc.Kind())}
}

func (f *Manifest) add(docs *documents, doc *document.Document, ignored *document.Notes) error {
	if taken, err := docs.add(doc); taken {
		if err == nil {
			err = fields.CheckKind(doc, ignored)
		}
		return err
	}
	w, err := workload.Read(doc)
	if err != nil {
		return err
	}
	if w == nil {
		if clusterOnly()[doc.Kind()] {
			ignored.Kind(doc)
			return nil
		}
		return unknownKind(doc)
	}
	err = errors.Join(fields.CheckKind(doc, ignored), fields.CheckPod(doc.Subtree(w.Place.Path("")), w.Place, w.Kind != "Pod", ignored))
	if err != nil {
		return err
	}
	if w.Suspended != "" {
		ignored.Add(fmt.Sprintf("line %d: %s makes no pods, because of %s", doc.Place.Line(w.Suspended), w, w.Suspended))
		return nil
	}
	f.Workloads = append(f.Workloads, &Workload{Workload: w})
	return nil
}

// checkNames refuses two pods of one name.
func (f *Manifest) checkNames() error {
	seen := map[string]bool{}
	var failed []error
	for _, b := range f.Pods() {
		name := b.Pod.Namespace + "/" + b.Pod.Name
		if seen[name] {
			failed = append(failed, &document.Fault{
				Line: b.place.Line("metadata.name"), Field: "metadata.name", Why: fmt.Sprintf("%q is the name of two pods", name),
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
		failed = append(failed, &document.Fault{
			Line: docs.places[of].Line("metadata.namespace"), Field: "metadata.namespace",
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
