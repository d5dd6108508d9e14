package podyaml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berthrun/berth/internal/errs"
)

// Fault is one thing that is wrong with a file. It has kind Invalid.
type Fault struct {
	// Line of the file where the field stands, or the nearest one above it that does; 0
	// when the file has no such place.
	Line int
	// Field is its path in the document.
	Field, Why string
}

// Error implements error.
func (f *Fault) Error() string {
	text := f.Why
	if f.Field != "" {
		text = f.Field + ": " + text
	}
	if f.Line > 0 {
		text = "line " + strconv.Itoa(f.Line) + ": " + text
	}
	return text
}

// Unwrap says that the file's author is to blame.
func (*Fault) Unwrap() error { return errs.Invalid }

// place is where a document, or the pod in it, stands in the file.
type place struct {
	root *yaml.Node
	// prefix leads from the document to the pod: "" for a Pod, "spec.template." for
	// what makes pods from a template.
	prefix string
}

// placeOf reads the places of a document whose lines are those of the file. A
// document that cannot be read has none.
func placeOf(doc []byte) place {
	var root yaml.Node
	if err := yaml.Unmarshal(doc, &root); err != nil || len(root.Content) == 0 {
		return place{}
	}
	return place{root: root.Content[0]}
}

// within returns the place of what prefix leads to.
func (p place) within(prefix string) place {
	p.prefix += prefix
	return p
}

// line returns the line of a field, or of the nearest field above it.
func (p place) line(field string) int {
	if p.root == nil {
		return 0
	}
	at, line := p.root, p.root.Line
	for _, step := range steps(p.prefix + field) {
		key, value := child(at, step)
		if value == nil {
			break
		}
		at, line = value, key.Line
	}
	return line
}

// steps splits a path as faults spell it: a.b[2].c is a, b, 2, c.
func steps(field string) []string {
	return strings.FieldsFunc(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// child finds an entry of a mapping, or an item of a list, which is its own key.
func child(node *yaml.Node, step string) (key, value *yaml.Node) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i], node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	}
	return nil, nil
}

// faults collects what is wrong with a document, so that all of it is reported at once.
type faults struct {
	place place
	list  []error
	// secret: no message has a value of the document.
	secret bool
}

func (f *faults) add(field, format string, args ...any) {
	f.list = append(f.list, &Fault{
		Line: f.place.line(field), Field: strings.TrimSuffix(f.place.prefix+field, "."), Why: fmt.Sprintf(format, args...),
	})
}

// addError adds an error about a field; what it wraps does not matter, its text does.
func (f *faults) addError(field string, err error) {
	var at *fieldError
	if errors.As(err, &at) {
		f.add(field+at.field, "%v", at.err)
		return
	}
	f.add(field, "%v", err)
}

func (f *faults) err() error { return errors.Join(f.list...) }

// fieldError is an error about a field below the one that its reader knows of.
type fieldError struct {
	field string
	err   error
}

func (e *fieldError) Error() string { return e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }
