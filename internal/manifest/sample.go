package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Sample renders a document with its help as comments: what doc (a pointer to a
// struct) holds as it is, every other field as a comment with an example.
func Sample(doc any) string {
	var b strings.Builder
	sampleStruct(&b, reflect.ValueOf(doc).Elem(), "", false)
	return b.String()
}

// sampleStruct writes the fields of a struct. off makes all of them comments.
func sampleStruct(b *strings.Builder, value reflect.Value, indent string, off bool) {
	for _, f := range fieldsOf(value.Type()) {
		v := value.FieldByIndex(f.index)
		if indent == "" && b.Len() > 0 && (structLike(f.typ) || f.typ.Kind() == reflect.Slice) {
			b.WriteByte('\n')
		}
		help := f.help
		if len(f.oneOf) > 0 {
			help += " One of " + strings.Join(f.oneOf, ", ") + "."
		}
		for _, line := range wrap(help, 96-len(indent)) {
			fmt.Fprintf(b, "%s# %s\n", indent, line)
		}
		sampleField(b, f, v, indent, off)
	}
}

// structLike types are written as a block.
func structLike(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && !isText(t)
}

func sampleField(b *strings.Builder, f field, v reflect.Value, indent string, off bool) {
	unset := off || isUnset(v)
	start := indent
	if unset {
		start += "# "
	}
	t := f.typ
	switch {
	case structLike(t):
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v = reflect.New(t.Elem())
			}
			v = v.Elem()
		}
		fmt.Fprintf(b, "%s%s:\n", start, f.name)
		sampleStruct(b, v, indent+"  ", unset)
	case t.Kind() == reflect.Slice && structLike(t.Elem()):
		fmt.Fprintf(b, "%s%s:\n", start, f.name)
		if v.Len() == 0 {
			sampleItem(b, reflect.New(t.Elem()).Elem(), indent, true)
		}
		for i := range v.Len() {
			sampleItem(b, v.Index(i), indent, unset)
		}
	default:
		text := f.example
		if !isUnset(v) || text == "" {
			text = inline(v)
		}
		fmt.Fprintf(b, "%s%s: %s\n", start, f.name, text)
	}
}

// sampleItem writes one struct of a list.
func sampleItem(b *strings.Builder, item reflect.Value, indent string, off bool) {
	if off {
		fmt.Fprintf(b, "%s# -\n", indent)
	} else {
		fmt.Fprintf(b, "%s-\n", indent)
	}
	sampleStruct(b, item, indent+"  ", off)
}

// isUnset reports whether a value is zero, or a struct of unset values.
func isUnset(v reflect.Value) bool {
	switch {
	case v.Kind() == reflect.Pointer:
		return v.IsNil() || structLike(v.Type()) && isUnset(v.Elem())
	case structLike(v.Type()):
		return !slices.ContainsFunc(fieldsOf(v.Type()), func(f field) bool { return !isUnset(v.FieldByIndex(f.index)) })
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Map:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// inline renders a value on one line of YAML.
func inline(v reflect.Value) string {
	var node yaml.Node
	if err := node.Encode(v.Interface()); err != nil {
		// Every type that a document may use has a YAML form; a test renders them all.
		panic(fmt.Sprintf("%v has no YAML form: %v", v.Type(), err))
	}
	flow(&node)
	text, err := yaml.Marshal(&node)
	if err != nil {
		panic(fmt.Sprintf("%v has no YAML form: %v", v.Type(), err))
	}
	return strings.TrimSpace(string(text))
}

func flow(node *yaml.Node) {
	node.Style |= yaml.FlowStyle
	if node.Kind == yaml.ScalarNode && strings.Contains(node.Value, "\n") {
		node.Style = yaml.DoubleQuotedStyle
	}
	for _, child := range node.Content {
		flow(child)
	}
}

// wrap breaks text into lines of at most width letters.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}
