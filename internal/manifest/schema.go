package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// Schema returns the JSON schema (draft 2020-12) of a document. doc is a pointer to
// a struct that holds the defaults; title names it.
func Schema(title string, doc any) []byte {
	value := reflect.ValueOf(doc).Elem()
	top := schemaOf(value.Type(), value, nil)
	top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	top["title"] = title
	text, err := json.MarshalIndent(top, "", "  ")
	if err != nil {
		// The tree is made of maps, strings and the document's own defaults.
		panic(fmt.Sprintf("schema of %s has no JSON form: %v", title, err))
	}
	return append(text, '\n')
}

// schemaOf describes a type; value holds the default, or is the zero Value.
func schemaOf(t reflect.Type, value reflect.Value, f *field) map[string]any {
	schema := map[string]any{}
	switch {
	case isText(t):
		schema["type"] = "string"
		if f != nil && len(f.oneOf) > 0 {
			schema["enum"] = f.oneOf
		}
	case t.Kind() == reflect.Pointer:
		var inner reflect.Value
		if value.IsValid() && !value.IsNil() {
			inner = value.Elem()
		}
		schema = schemaOf(t.Elem(), inner, f)
	case t.Kind() == reflect.Struct:
		structSchema(schema, t, value)
	case t.Kind() == reflect.Slice:
		schema["type"] = "array"
		schema["items"] = schemaOf(t.Elem(), reflect.Value{}, f)
	case t.Kind() == reflect.Map:
		schema["type"] = "object"
		schema["additionalProperties"] = schemaOf(t.Elem(), reflect.Value{}, nil)
	case t.Kind() == reflect.Bool:
		schema["type"] = "boolean"
	case t.Kind() == reflect.Interface:
	case t.Kind() == reflect.String:
		schema["type"] = "string"
		if f != nil && len(f.oneOf) > 0 {
			schema["enum"] = f.oneOf
		}
	default:
		schema["type"] = "integer"
	}
	return schema
}

func structSchema(schema map[string]any, t reflect.Type, value reflect.Value) {
	properties := map[string]any{}
	var required []string
	for _, f := range fieldsOf(t) {
		var fieldValue reflect.Value
		if value.IsValid() {
			fieldValue = value.FieldByIndex(f.index)
		}
		property := schemaOf(f.typ, fieldValue, &f)
		property["description"] = f.help
		if !f.required && fieldValue.IsValid() && !fieldValue.IsZero() && fieldValue.Kind() != reflect.Struct {
			property["default"] = fieldValue.Interface()
		}
		properties[f.name] = property
		if f.required {
			required = append(required, f.name)
		}
	}
	schema["type"] = "object"
	schema["additionalProperties"] = false
	schema["properties"] = properties
	if len(required) > 0 {
		schema["required"] = required
	}
}
