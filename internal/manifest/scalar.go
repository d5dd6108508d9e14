package manifest

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

func (r *Reader) text(path string, node *yaml.Node, into reflect.Value, f *field) {
	if node.Kind != yaml.ScalarNode {
		r.Fault(path, "%s: want a string", describe(node))
		return
	}
	// isText has made sure that the pointer has the method.
	err := into.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(node.Value))
	switch {
	case err == nil:
	case f != nil && len(f.oneOf) > 0:
		r.Fault(path, "%v; want one of %s%s", err, strings.Join(f.oneOf, ", "), nearest(node.Value, f.oneOf))
	default:
		r.Fault(path, "%v", err)
	}
}

func (r *Reader) scalar(path string, node *yaml.Node, into reflect.Value, f *field) {
	switch {
	case into.Kind() == reflect.Bool:
		on, ok := r.boolean(node)
		if !ok {
			r.Fault(path, "%s: want true or false", describe(node))
			return
		}
		into.SetBool(on)
	case into.CanInt():
		number, err := strconv.ParseInt(node.Value, 0, 64)
		if node.Kind != yaml.ScalarNode || node.Tag != "!!int" || err != nil || into.OverflowInt(number) {
			r.Fault(path, "%s: want a whole number", describe(node))
			return
		}
		into.SetInt(number)
	default:
		r.str(path, node, into, f)
	}
}

func (r *Reader) boolean(node *yaml.Node) (on, ok bool) {
	switch {
	case node.Kind != yaml.ScalarNode:
		return false, false
	case node.Tag == "!!bool":
		return strings.EqualFold(node.Value, "true"), true
	case !r.plain || node.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		return false, false
	}
	switch strings.ToLower(node.Value) {
	case "y", "yes", "on":
		return true, true
	case "n", "no", "off":
		return false, true
	}
	return false, false
}

// str reads a string. It refuses plain numbers and booleans: 1.10 would be 1.1 to the next reader,
// and "no" is a boolean to some.
func (r *Reader) str(path string, node *yaml.Node, into reflect.Value, f *field) {
	if node.Kind != yaml.ScalarNode || node.Tag != "!!str" && node.Tag != "!!timestamp" && !r.plain {
		hint := ""
		if node.Kind == yaml.ScalarNode {
			hint = fmt.Sprintf("; write %q", node.Value)
		}
		r.Fault(path, "%s: want a string%s", describe(node), hint)
		return
	}
	if f != nil && len(f.oneOf) > 0 && !slices.Contains(f.oneOf, node.Value) {
		r.Fault(path, "%q: want one of %s%s", node.Value, strings.Join(f.oneOf, ", "), nearest(node.Value, f.oneOf))
		return
	}
	if (f == nil || !f.lines) && strings.ContainsFunc(node.Value, unicode.IsControl) {
		r.Fault(path, "%q: want no line break and no other control character in it", node.Value)
		return
	}
	into.SetString(node.Value)
}

func describe(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return strconv.Quote(node.Value)
	}
}
