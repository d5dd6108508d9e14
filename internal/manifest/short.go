package manifest

import (
	"fmt"
	"reflect"
	"strings"
)

// Short renders the fields of a document that are not as in usual, with their help as comments. doc
// and usual are pointers to structs of one type. A reader with the defaults of usual reads it back
// as doc.
func Short(doc, usual any) string {
	var b strings.Builder
	shortStruct(&b, reflect.ValueOf(doc).Elem(), reflect.ValueOf(usual).Elem(), "")
	return b.String()
}

func shortStruct(b *strings.Builder, value, usual reflect.Value, indent string) {
	for _, f := range fieldsOf(value.Type()) {
		v, u := value.FieldByIndex(f.index), usual.FieldByIndex(f.index)
		if isUnset(v) && isUnset(u) || reflect.DeepEqual(v.Interface(), u.Interface()) {
			continue
		}
		if indent == "" && b.Len() > 0 && (structLike(f.typ) || f.typ.Kind() == reflect.Slice) {
			b.WriteByte('\n')
		}
		for _, line := range wrap(f.help, 96-len(indent)) {
			fmt.Fprintf(b, "%s# %s\n", indent, line)
		}
		switch {
		case structLike(f.typ) && !isUnset(v):
			fmt.Fprintf(b, "%s%s:\n", indent, f.name)
			shortStruct(b, pointee(v), pointee(u), indent+"  ")
		case f.typ.Kind() == reflect.Slice && structLike(f.typ.Elem()) && v.Len() > 0:
			fmt.Fprintf(b, "%s%s:\n", indent, f.name)
			for i := range v.Len() {
				fmt.Fprintf(b, "%s-\n", indent)
				item := pointee(v.Index(i))
				shortStruct(b, item, reflect.Zero(item.Type()), indent+"  ")
			}
		default:
			fmt.Fprintf(b, "%s%s: %s\n", indent, f.name, inline(v))
		}
	}
}

// pointee is what a pointer points to, and the zero value for nil; others are themselves.
func pointee(v reflect.Value) reflect.Value {
	switch {
	case v.Kind() != reflect.Pointer:
		return v
	case v.IsNil():
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}
