package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds what aliases may expand to.
const maxNodes = 100_000

// Reader gathers the faults of one document, each with its place.
type Reader struct {
	file   string
	places map[string]place
	faults Faults
	nodes  int
	// plain takes scalars as Go's YAML library does; see ReadPlain.
	plain bool
}

type place struct{ line, column int }

// Read reads one YAML or JSON document into a pointer to a struct, over the
// defaults that the struct holds. It continues after a fault; Err returns
// all of them. file names the document in faults.
func Read(file string, data []byte, into any) *Reader {
	return read(&Reader{file: file, places: map[string]place{}}, data, into)
}

// ReadPlain reads as Read does, but for documents of others, whose own reader accepts a plain
// number or boolean unchanged for a string, and yes, no, on and off for a boolean.
func ReadPlain(file string, data []byte, into any) *Reader {
	return read(&Reader{file: file, places: map[string]place{}, plain: true}, data, into)
}

// Meta reads apiVersion and kind of a document. The Reader knows only the places of the
// top-level fields, and has a fault if there is no document.
func Meta(file string, data []byte) (apiVersion, kind string, r *Reader) {
	r = &Reader{file: file, places: map[string]place{}}
	root := r.root(data)
	if root == nil {
		return "", "", r
	}
	if root.Kind != yaml.MappingNode {
		r.Fault("", "%s: want a mapping", describe(root))
		return "", "", r
	}
	for _, e := range r.entries("", root) {
		r.places[e.key.Value] = place{e.key.Line, e.key.Column}
		switch e.key.Value {
		case "apiVersion":
			apiVersion = e.value.Value
		case "kind":
			kind = e.value.Value
		}
	}
	return apiVersion, kind, r
}

func read(r *Reader, data []byte, into any) *Reader {
	if root := r.root(data); root != nil {
		r.value("", root, reflect.ValueOf(into).Elem(), nil)
	}
	return r
}

// root returns the top node of the document. If there is none, it adds a fault.
func (r *Reader) root(data []byte) *yaml.Node {
	root, err := parse(data)
	if err != nil {
		r.syntax(data, err)
		return nil
	}
	r.places[""] = place{1, 1}
	if root == nil {
		r.Fault("", "the document is empty; want apiVersion, kind and what follows from them")
	}
	return root
}

// Fault adds a fault: what is wrong, and after "; " or ": want " what to do about it. A
// path that is not in the document gets the place of the nearest one above it that is.
func (r *Reader) Fault(path, format string, args ...any) {
	fault := Fault{File: r.file, Path: path, Problem: fmt.Sprintf(format, args...)}
	fault.Line, fault.Column = r.Place(path)
	r.faults = append(r.faults, fault)
}

// File is the name that faults give the document.
func (r *Reader) File() string { return r.file }

// Place returns the line and column of a path, or of the nearest one above it that the
// document has; 0, 0 for none.
func (r *Reader) Place(path string) (line, column int) {
	for at := path; ; at = parent(at) {
		if p, ok := r.places[at]; ok {
			return p.line, p.column
		}
		if at == "" {
			return 0, 0
		}
	}
}

// Has reports whether the document sets a path.
func (r *Reader) Has(path string) bool {
	_, ok := r.places[path]
	return ok
}

// Broken reports whether there is a fault at a path or below it; checks of a value
// that could not be read would only confuse.
func (r *Reader) Broken(path string) bool {
	return slices.ContainsFunc(r.faults, func(f Fault) bool {
		return f.Path == path || strings.HasPrefix(f.Path, path+".") || strings.HasPrefix(f.Path, path+"[")
	})
}

// Err is nil, or all Faults in the order of the document.
func (r *Reader) Err() error {
	if len(r.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(r.faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	return slices.Compact(r.faults)
}

func parent(path string) string {
	if strings.HasSuffix(path, "]") {
		return path[:strings.LastIndex(path, "[")]
	}
	return path[:max(strings.LastIndex(path, "."), 0)]
}

// parse returns the top node of the only document, nil if there is none.
func parse(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, err
	}
	for {
		err := decoder.Decode(&second)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		// A separator at the end begins no document.
		if len(second.Content) > 0 && second.Content[0].Tag != "!!null" {
			return nil, fmt.Errorf("yaml: line %d: a second document begins; want one in a file", second.Line)
		}
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, nil
	}
	return doc.Content[0], nil
}

// syntax adds the fault of the parser. The parser knows the line only, so the column is
// that of the line's first letter.
func (r *Reader) syntax(data []byte, err error) {
	fault := Fault{File: r.file, Line: 1, Column: 1, Problem: strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := regexp.MustCompile(`^yaml: line (\d+): (.*)$`).FindStringSubmatch(err.Error()); m != nil {
		fault.Line, _ = strconv.Atoi(m[1])
		fault.Problem = m[2]
		// The library counts the lines of its parser from 0, those of its scanner from 1.
		if regexp.MustCompile(`expected (<document|node content|',' or|key$|'-')`).MatchString(m[2]) {
			fault.Line++
		}
		if lines := strings.Split(string(data), "\n"); fault.Line >= 1 && fault.Line <= len(lines) {
			line := lines[fault.Line-1]
			fault.Column = len(line) - len(strings.TrimLeft(line, " \t")) + 1
		}
	}
	if fault.Fix() == "" {
		fault.Problem += "; mind quotes, brackets and indentation, there and in the line above"
	}
	r.faults = append(r.faults, fault)
}

// value sets one value of the struct from its node.
func (r *Reader) value(path string, node *yaml.Node, into reflect.Value, f *field) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if _, known := r.places[path]; !known {
		r.places[path] = place{node.Line, node.Column}
	}
	if !r.countValues(path, 1) {
		return
	}
	if node.Tag == "!!null" {
		return // as if it were not there
	}
	if isText(into.Type()) {
		r.text(path, node, into, f)
		return
	}
	switch into.Kind() {
	case reflect.Pointer:
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		r.value(path, node, into.Elem(), f)
	case reflect.Struct:
		r.object(path, node, into)
	case reflect.Slice:
		r.list(path, node, into, f)
	case reflect.Map:
		r.dictionary(path, node, into, f)
	case reflect.Interface:
		var v any
		if err := node.Decode(&v); err != nil {
			r.Fault(path, "%v; want a plain value, list or mapping", err)
			return
		}
		into.Set(reflect.ValueOf(v))
	default:
		r.scalar(path, node, into, f)
	}
}

// countValues counts values, and reports whether the document is within its limit. Going
// over it is one fault.
func (r *Reader) countValues(path string, values int) bool {
	before := r.nodes
	r.nodes += values
	if before <= maxNodes && r.nodes > maxNodes {
		r.Fault(path, "the document has more than %d values; leave out what aliases repeat", maxNodes)
	}
	return r.nodes <= maxNodes
}

func (r *Reader) object(path string, node *yaml.Node, into reflect.Value) {
	if node.Kind != yaml.MappingNode {
		r.Fault(path, "%s: want a mapping", describe(node))
		return
	}
	fields := fieldsOf(into.Type())
	seen := map[string]bool{}
	for _, e := range r.entries(path, node) {
		key, value := e.key, e.value
		at := join(path, key.Value)
		r.places[at] = place{key.Line, key.Column}
		if seen[key.Value] {
			r.Fault(at, "is there twice; leave one out")
			continue
		}
		seen[key.Value] = true
		k := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		if k < 0 {
			r.Fault(at, "no such field%s", suggest(key.Value, fields))
			continue
		}
		r.value(at, value, into.FieldByIndex(fields[k].index), &fields[k])
	}
	for _, f := range fields {
		at := join(path, f.name)
		switch {
		case !f.required:
		case !seen[f.name]:
			r.Fault(at, "is missing; %s", f.wanted())
		case into.FieldByIndex(f.index).IsZero() && !r.Broken(at):
			r.Fault(at, "is empty; %s", f.wanted())
		}
	}
}

func (r *Reader) list(path string, node *yaml.Node, into reflect.Value, f *field) {
	if node.Kind != yaml.SequenceNode {
		r.Fault(path, "%s: want a list", describe(node))
		return
	}
	list := reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		r.places[at] = place{item.Line, item.Column}
		if item.Tag == "!!null" {
			r.Fault(at, "is empty; want a value, or leave it out")
			continue
		}
		r.value(at, item, list.Index(i), f)
	}
	into.Set(list)
}

func (r *Reader) dictionary(path string, node *yaml.Node, into reflect.Value, f *field) {
	if node.Kind != yaml.MappingNode {
		r.Fault(path, "%s: want a mapping", describe(node))
		return
	}
	entries := reflect.MakeMap(into.Type())
	for _, e := range r.entries(path, node) {
		key := e.key
		at := Key(path, key.Value)
		r.places[at] = place{key.Line, key.Column}
		if entries.MapIndex(reflect.ValueOf(key.Value)).IsValid() {
			r.Fault(at, "is there twice; leave one out")
			continue
		}
		if strings.ContainsFunc(key.Value, unicode.IsControl) {
			r.Fault(at, "want no line break and no other control character in it")
			continue
		}
		value := reflect.New(into.Type().Elem()).Elem()
		r.value(at, e.value, value, f)
		entries.SetMapIndex(reflect.ValueOf(key.Value), value)
	}
	into.Set(entries)
}
