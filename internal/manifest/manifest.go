// Package manifest reads the documents that people write for berth: YAML or JSON with an apiVersion
// and a kind. A document is one Go struct, and the struct's tags are the only place where a field
// is described:
//
//	json:"name"       the field's name in the document
//	help:"..."        one or two sentences for people
//	oneof:"a b"       the accepted values of a string, or of each in a list; a type
//	                  that parses itself checks them itself
//	example:"x"       a value for the sample, as it stands in YAML
//	required:"yes"    the field must be set
//	lines:"yes"       a string may have line breaks; no other may, nor other
//	                  control characters
//
// Reading, its faults, the JSON schema, the sample and the reference page are derived from them.
// The package knows no kind of document.
//
// A document may use struct, pointer to struct, slice, pointer to slice (where an empty list
// differs from none), map with string keys, string, bool, pointer to bool, int, pointer to int,
// any, and types with UnmarshalText. The fields of an embedded struct are fields of the struct that
// embeds it. YAML's merge keys ("<<") work as in every reader of YAML 1.1.
package manifest

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Fault is one thing that is wrong with a document.
type Fault struct {
	File string
	// Line and Column count from 1. Both are 0 when the fault is not at any place
	// in the file.
	Line, Column int
	// Path is as in "runtime.handlers[0].name"; "" is the whole document.
	Path string
	// Problem quotes the value, says what is wrong with it, and what to do.
	Problem string
}

// Fix is the part of the problem that says what to do: the text after "; ", or from "want" on. It
// is empty if there is none.
func (f Fault) Fix() string {
	if at := regexp.MustCompile(`(?:; |^|: |, )want |; `).FindStringIndex(f.Problem); at != nil {
		return strings.TrimLeft(f.Problem[at[0]:], ";:, ")
	}
	return ""
}

func (f Fault) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File + ":")
		if f.Line > 0 {
			fmt.Fprintf(&b, "%d:%d:", f.Line, f.Column)
		}
		b.WriteByte(' ')
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	return b.String() + f.Problem
}

// Faults is every fault of a document, as one error of kind errs.Invalid.
type Faults []Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives Faults their kind.
func (f Faults) Unwrap() error { return errs.Invalid }

// field is one field of a struct, as its tags describe it.
type field struct {
	name, help, example string
	oneOf               []string
	required, lines     bool
	index               []int
	typ                 reflect.Type
}

// wanted says what to write for a field that must be there.
func (f field) wanted() string {
	switch {
	case len(f.oneOf) == 1:
		return "want " + f.oneOf[0]
	case len(f.oneOf) > 0:
		return "want one of " + strings.Join(f.oneOf, ", ")
	case f.example != "":
		return "want one such as " + f.example
	}
	return "want a " + strings.TrimPrefix(typeName(f.typ), "a ")
}

func fieldsOf(t reflect.Type) []field {
	fields := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Tag.Get("json") == "" {
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				fields = append(fields, inner)
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		fields = append(fields, field{
			name: name, help: f.Tag.Get("help"), example: f.Tag.Get("example"),
			oneOf: strings.Fields(f.Tag.Get("oneof")), required: f.Tag.Get("required") == "yes",
			lines: f.Tag.Get("lines") == "yes",
			index: f.Index, typ: f.Type,
		})
	}
	return fields
}

// isText reports whether a type is written as a string that it parses itself.
func isText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// Key names the entry of a map in a path.
func Key(path, key string) string {
	if strings.ContainsAny(key, `."[] `) {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	return join(path, key)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
