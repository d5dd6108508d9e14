package document

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Place is where a document, or the pod in it, stands in the file.
type Place struct {
	root *yaml.Node
	// prefix leads from the document to the pod: "" for a Pod, "spec.template." for
	// what makes pods from a template.
	prefix string
}

// placeOf reads the places of a document whose lines are those of the file. A
// document that cannot be read has none.
func placeOf(doc []byte) Place {
	var root yaml.Node
	if err := yaml.Unmarshal(doc, &root); err != nil || len(root.Content) == 0 {
		return Place{}
	}
	return Place{root: root.Content[0]}
}

// Within returns the place of what prefix leads to.
func (p Place) Within(prefix string) Place {
	p.prefix += prefix
	return p
}

// Line returns the line of a field, or of the nearest field above it.
func (p Place) Line(field string) int {
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

// Whole returns the place of the document that p is in.
func (p Place) Whole() Place { return Place{root: p.root} }

// Path returns the path of a field from the document on.
func (p Place) Path(field string) string { return p.prefix + field }

// Locate puts before each field the line where it stands in the file, or would stand. A
// field may be followed by ": " and more text.
func (p Place) Locate(fields []string) []string {
	for i, text := range fields {
		field, _, _ := strings.Cut(text, ":")
		fields[i] = fmt.Sprintf("line %d: %s", p.Line(field), p.Path(text))
	}
	return fields
}
