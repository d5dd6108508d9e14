package podyaml

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/network"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// Service is a name by which pods find others of the file.
type Service struct {
	Name, Namespace string
	// Pods are those that it selects.
	Pods []*Bundle
}

// Names of a Service, as a cluster's DNS has them.
func (s *Service) Names() []string {
	qualified := s.Name + "." + s.Namespace
	return []string{s.Name, qualified, qualified + ".svc", qualified + ".svc." + network.ClusterDomain}
}

// PodNames are those of one of its pods: the ones that a pod with a hostname has in the
// Service that its subdomain names.
func (s *Service) PodNames(b *Bundle) []string {
	if b.Pod.Spec.Hostname == "" || b.Pod.Spec.Subdomain != s.Name {
		return nil
	}
	var names []string
	for _, name := range s.Names() {
		names = append(names, b.Pod.Spec.Hostname+"."+name)
	}
	return names
}

// serve makes the file's Services, and notes what of them has no effect: pods reach
// each other at their own ports.
func (f *Manifest) serve(docs *documents, ignored *document.Notes) ([]*Service, error) {
	var services []*Service
	for _, doc := range docs.services {
		at := document.Faults{Place: docs.places[doc]}
		for _, why := range validation.IsDNS1035Label(doc.Name) {
			at.Add("metadata.name", "%q: %s", doc.Name, why)
		}
		if doc.Namespace != "" {
			for _, why := range validation.IsDNS1123Label(doc.Namespace) {
				at.Add("metadata.namespace", "%q: %s", doc.Namespace, why)
			}
		}
		if err := at.Err(); err != nil {
			return nil, err
		}
		s := &Service{Name: doc.Name, Namespace: doc.Namespace}
		if s.Namespace == "" {
			s.Namespace = corev1.NamespaceDefault
		}
		line := docs.places[doc].Line("kind")
		if len(doc.Spec.Selector) == 0 {
			ignored.Add(fmt.Sprintf("line %d: Service %s selects no pods", line, s.Name))
			continue
		}
		selector := labels.SelectorFromSet(doc.Spec.Selector)
		for _, b := range f.Pods() {
			if sameNamespace(doc.Namespace, b.Pod.Namespace) && selector.Matches(labels.Set(b.Pod.Labels)) {
				s.Namespace = b.Pod.Namespace
				s.Pods = append(s.Pods, b)
			}
		}
		for i := range doc.Spec.Ports {
			s.notePort(&doc.Spec.Ports[i], line, ignored)
		}
		services = append(services, s)
	}
	return services, nil
}

// notePort notes a port of a Service that is not its pods': nothing maps it.
func (s *Service) notePort(p *corev1.ServicePort, line int, ignored *document.Notes) {
	target := p.TargetPort.String()
	switch {
	case target == "0" || target == "" || target == fmt.Sprint(p.Port):
		return
	case len(s.Pods) > 0 && s.hasPort(target, p.Port):
		return
	}
	ignored.Add(fmt.Sprintf("line %d: Service %s: pods reach its pods at their port %s, not at %d", line, s.Name, target, p.Port))
}

// hasPort reports whether the port of this name is the number in all pods.
func (s *Service) hasPort(name string, number int32) bool {
	for _, b := range s.Pods {
		is := func(c *corev1.Container) bool {
			return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name && p.ContainerPort == number })
		}
		if !slices.ContainsFunc(podspec.Containers(b.Pod), is) {
			return false
		}
	}
	return true
}
