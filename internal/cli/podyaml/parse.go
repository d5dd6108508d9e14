// Package podyaml turns Kubernetes Pod YAML into CRI configurations.
//
// It is pure: it reads no file, asks no runtime and makes nothing. A field that
// `berth pod run` does not honour is a fault that names the field, never ignored.
package podyaml

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// Bundle is one pod with the documents that it refers to.
type Bundle struct {
	// Pod with its defaults filled in.
	Pod *corev1.Pod
	// ConfigMaps and Secrets of the pod's namespace, by name.
	ConfigMaps map[string]*corev1.ConfigMap
	Secrets    map[string]*corev1.Secret
	// Handler is the runtime class, "" for the default.
	Handler string
}

// Parse reads a file of YAML documents: one Pod, and any ConfigMaps and Secrets.
// All faults are reported together, each with kind Invalid.
func Parse(data []byte) (*Bundle, error) {
	b := &Bundle{ConfigMaps: map[string]*corev1.ConfigMap{}, Secrets: map[string]*corev1.Secret{}}
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read document %d: %w: %w", n, errs.Invalid, err)
		}
		if err := b.add(doc); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
	if b.Pod == nil {
		return nil, fmt.Errorf("there is no document of kind Pod: %w", errs.Invalid)
	}
	setDefaults(b.Pod)
	if err := b.checkNamespaces(); err != nil {
		return nil, err
	}
	if err := b.validate(); err != nil {
		return nil, err
	}
	if b.Pod.Spec.RuntimeClassName != nil {
		b.Handler = *b.Pod.Spec.RuntimeClassName
	}
	return b, nil
}

func (b *Bundle) add(doc []byte) error {
	var tree map[string]any
	if err := yaml.Unmarshal(doc, &tree); err != nil {
		return fmt.Errorf("it is no YAML object: %w: %w", errs.Invalid, err)
	}
	if len(tree) == 0 { // nothing but comments
		return nil
	}
	switch kind := fmt.Sprintf("%v %v", tree["apiVersion"], tree["kind"]); kind {
	case "v1 Pod":
		if b.Pod != nil {
			return fmt.Errorf("a second Pod: one file is one pod: %w", errs.Invalid)
		}
		b.Pod = &corev1.Pod{}
		if err := decode(doc, b.Pod); err != nil {
			return fmt.Errorf("it is no v1 Pod: %w", err)
		}
		return checkHonoured(tree)
	case "v1 ConfigMap":
		var m corev1.ConfigMap
		if err := decode(doc, &m); err != nil {
			return fmt.Errorf("it is no v1 ConfigMap: %w", err)
		}
		b.ConfigMaps[m.Name] = &m
	case "v1 Secret":
		var s corev1.Secret
		if err := decode(doc, &s); err != nil {
			return fmt.Errorf("it is no v1 Secret: %w", err)
		}
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		for name, value := range s.StringData {
			s.Data[name] = []byte(value)
		}
		b.Secrets[s.Name] = &s
	default:
		return fmt.Errorf("kind %q is none of v1 Pod, v1 ConfigMap, v1 Secret: %w", kind, errs.Invalid)
	}
	return nil
}

// decode refuses fields that the type does not have, each by its path, and keys that
// stand twice.
func decode(doc []byte, into any) error {
	data, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return fmt.Errorf("%w: %w", errs.Invalid, err)
	}
	strict, err := kjson.UnmarshalStrict(data, into)
	if err := errors.Join(append(strict, err)...); err != nil {
		return fmt.Errorf("%w: %w", errs.Invalid, err)
	}
	return nil
}

// checkNamespaces refuses documents that the pod could not see in a cluster.
func (b *Bundle) checkNamespaces() error {
	for _, m := range b.ConfigMaps {
		if !sameNamespace(m.Namespace, b.Pod.Namespace) {
			return fmt.Errorf("ConfigMap %s is in namespace %s, the pod in %s: %w", m.Name, m.Namespace, b.Pod.Namespace, errs.Invalid)
		}
	}
	for _, s := range b.Secrets {
		if !sameNamespace(s.Namespace, b.Pod.Namespace) {
			return fmt.Errorf("Secret %s is in namespace %s, the pod in %s: %w", s.Name, s.Namespace, b.Pod.Namespace, errs.Invalid)
		}
	}
	return nil
}

// sameNamespace takes a document that names no namespace as the pod's.
func sameNamespace(document, pod string) bool { return document == "" || document == pod }
