package manifest

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference renders a table of every field of a document: its path, type, default
// and meaning. doc is a pointer to a struct that holds the defaults.
func Reference(doc any) string {
	var b strings.Builder
	value := reflect.ValueOf(doc).Elem()
	b.WriteString("| field | type | default | meaning |\n|---|---|---|---|\n")
	referenceRows(&b, "", value.Type(), value)
	return b.String()
}

func referenceRows(b *strings.Builder, path string, t reflect.Type, value reflect.Value) {
	for _, f := range fieldsOf(t) {
		at := join(path, f.name)
		var v reflect.Value
		if value.IsValid() {
			v = value.FieldByIndex(f.index)
		}
		inner, suffix := blockType(f.typ)
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", at, typeName(f.typ), defaultText(f, v), referenceHelp(f))
		if inner == nil {
			continue
		}
		if v.IsValid() && v.Kind() == reflect.Pointer {
			v = v.Elem() // the zero Value where nil
		}
		if suffix != "" {
			v = reflect.Value{}
		}
		referenceRows(b, at+suffix, inner, v)
	}
}

// blockType returns the struct that a field is made of, nil if none, and what its
// path gets: "[]" for a list of them.
func blockType(t reflect.Type) (inner reflect.Type, suffix string) {
	if t.Kind() == reflect.Slice {
		t, suffix = t.Elem(), "[]"
	}
	if !structLike(t) {
		return nil, ""
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t, suffix
}

func defaultText(f field, v reflect.Value) string {
	if f.required || !v.IsValid() || structLike(f.typ) || isUnset(v) {
		return ""
	}
	return "`" + inline(v) + "`"
}

func referenceHelp(f field) string {
	help := f.help
	if len(f.oneOf) > 0 {
		help += " One of `" + strings.Join(f.oneOf, "`, `") + "`."
	}
	if f.required {
		help += " Required."
	}
	return strings.ReplaceAll(help, "|", `\|`)
}

func typeName(t reflect.Type) string {
	switch {
	case isText(t) || t.Kind() == reflect.String:
		return "string"
	case t.Kind() == reflect.Pointer:
		return typeName(t.Elem())
	case t.Kind() == reflect.Struct:
		return "mapping"
	case t.Kind() == reflect.Slice:
		return "list of " + typeName(t.Elem())
	case t.Kind() == reflect.Map:
		return "mapping to " + typeName(t.Elem())
	case t.Kind() == reflect.Bool:
		return "boolean"
	case t.Kind() == reflect.Interface:
		return "any"
	default:
		return "integer"
	}
}
