package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// mismatches adds a fault for each value of a document that its field cannot hold, where at leads
// to. A decoder stops at the first one, and says neither its line nor which item of a list it is
// in.
func (f *Faults) mismatches(at string, value any, of reflect.Type) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case value == nil:
	case reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()):
		f.mismatch(at, value, of)
	case of.Kind() == reflect.Struct:
		object, ok := value.(map[string]any)
		if !ok {
			f.mismatch(at, value, of)
			return
		}
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name == "" { // the fields of what is embedded are its own
				f.mismatches(at, value, of.Field(i).Type)
				continue
			}
			f.mismatches(below(at, name), object[name], of.Field(i).Type)
		}
	case of.Kind() == reflect.Map:
		object, ok := value.(map[string]any)
		if !ok {
			f.mismatch(at, value, of)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			f.mismatches(below(at, name), object[name], of.Elem())
		}
	case of.Kind() == reflect.Slice && of.Elem().Kind() != reflect.Uint8:
		list, ok := value.([]any)
		if !ok {
			f.mismatch(at, value, of)
			return
		}
		for i, item := range list {
			f.mismatches(fmt.Sprintf("%s[%d]", at, i), item, of.Elem())
		}
	default:
		f.mismatch(at, value, of)
	}
}

func below(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// mismatch adds a fault where one value does not become what its field holds.
func (f *Faults) mismatch(at string, value any, of reflect.Type) {
	text, err := json.Marshal(value)
	if err != nil {
		return // it comes from a reader of JSON
	}
	err = json.Unmarshal(text, reflect.New(of).Interface())
	shown := string(text)
	if f.secret {
		shown = "…"
	}
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
	case errors.As(err, &kind):
		f.Add(at, "%s: want %s", shown, expected(shown, of))
	default:
		f.Add(at, "%s: %v", shown, err)
	}
}

// expected is what a field holds, in the words of people; shown is what it has.
func expected(shown string, of reflect.Type) string {
	switch of.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		if strings.HasPrefix(shown, "{") || strings.HasPrefix(shown, "[") || shown == "…" {
			return "a string"
		}
		return fmt.Sprintf("a string, %q", shown)
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return "base64"
		}
		return "a list"
	case reflect.Struct, reflect.Map:
		if of == reflect.TypeFor[intstr.IntOrString]() {
			return "a whole number or a string"
		}
		return "an object"
	}
	return "a whole number"
}
