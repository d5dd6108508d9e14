// Package document reads the YAML documents of a file. A fault of a document names the line and
// the field that it is about.
package document

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Document is one document of a file.
type Document struct {
	text  []byte
	Tree  map[string]any
	Place Place
}

// Split cuts a file at its lines "---". Each document begins with as many empty lines
// as stand before it, so that its lines have the file's numbers.
func Split(data []byte) [][]byte {
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

// isSeparator reports whether a line is "---", which a comment may follow.
func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	rest = bytes.TrimSpace(rest)
	return ok && (len(rest) == 0 || rest[0] == '#')
}

// Read returns nil for a document with nothing but comments.
func Read(text []byte) (*Document, error) {
	doc := &Document{text: text}
	if err := yaml.Unmarshal(text, &doc.Tree); err != nil {
		return nil, &Fault{Why: fmt.Sprintf("it is not a YAML object: %v", err)}
	}
	if len(doc.Tree) == 0 {
		return nil, nil
	}
	doc.Place = placeOf(text)
	return doc, nil
}

// Kind returns "GROUP/VERSION KIND", or "VERSION KIND" for the core group.
func (d *Document) Kind() string {
	return fmt.Sprintf("%v %v", d.Tree["apiVersion"], d.Tree["kind"])
}

// Decode refuses fields that the type does not have and values that their fields cannot hold,
// each by its path, and keys that stand twice.
func (d *Document) Decode(into any) error {
	_, secret := into.(*corev1.Secret)
	f := Faults{Place: d.Place, secret: secret}
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return &Fault{Why: err.Error()}
	}
	strict, err := kjson.UnmarshalStrict(data, into)
	for _, unknown := range strict {
		var field kjson.FieldError
		if errors.As(unknown, &field) {
			f.list = append(f.list, &Fault{Line: d.Place.Line(field.FieldPath()), Why: unknown.Error()})
			continue
		}
		f.Add("", "it is not a valid %s: %v", d.Kind(), unknown)
	}
	if err == nil {
		return f.Err()
	}
	before := len(f.list)
	if f.mismatches("", d.Tree, reflect.TypeOf(into)); len(f.list) == before {
		f.Add("", "it is not a valid %s: %v", d.Kind(), err)
	}
	return f.Err()
}

// Subtree is a copy of what prefix leads to.
func (d *Document) Subtree(prefix string) map[string]any {
	tree := d.Tree
	for _, step := range steps(prefix) {
		tree, _ = tree[step].(map[string]any)
	}
	return maps.Clone(tree)
}
