// Package fields knows which fields of the documents of a file `berth pod run` honours, and which
// it ignores. A field in no list is refused.
package fields

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
)

// lists say how berth treats the fields of a document: each list has paths, separated by space,
// that stand for all below them. A field in none of them is refused.
type lists struct {
	honoured, ignored string
	// serverDefaults has a path and a value a line: see the pod's.
	serverDefaults string
	reasons        map[string]string
}

// rules are the lists in a form for lookups.
type rules struct {
	honoured, ignored map[string]bool
	serverDefaults    map[string][]string
	reasons           map[string]string
	// inner are the proper prefixes of all of them.
	inner map[string]bool
	place document.Place
	notes *document.Notes
	// found are the faults.
	found document.Faults
}

func parseLists(l lists, at document.Place, n *document.Notes) *rules {
	f := &rules{
		honoured: map[string]bool{}, ignored: map[string]bool{}, serverDefaults: map[string][]string{}, reasons: l.reasons,
		inner: map[string]bool{}, place: at, notes: n, found: document.Faults{Place: at},
	}
	for _, path := range strings.Fields(l.honoured) {
		f.honoured[path] = true
		f.addInner(path)
	}
	for _, path := range strings.Fields(l.ignored) {
		f.ignored[path] = true
		f.addInner(path)
	}
	for line := range strings.Lines(strings.TrimSpace(l.serverDefaults)) {
		line = strings.TrimSpace(line)
		path, value, _ := strings.Cut(line, " ")
		f.serverDefaults[path] = append(f.serverDefaults[path], value)
		f.addInner(path)
	}
	return f
}

func (f *rules) addInner(path string) {
	for i, r := range path {
		if r == '.' || r == '[' {
			f.inner[path[:i]] = true
		}
	}
}

// CheckPod reports every field of a pod that is not honoured, and notes those that
// are ignored. CheckKind checks the name and namespace of a template.
func CheckPod(tree map[string]any, at document.Place, isTemplate bool, n *document.Notes) error {
	f := parseLists(podLists(), at, n)
	if isTemplate {
		delete(tree, "status")
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		f.check(name, name, tree[name])
	}
	return f.found.Err()
}

// check looks at one field: path as it is written, rule as the lists spell it.
func (f *rules) check(path, rule string, value any) {
	rule = strings.Replace(rule, "spec.initContainers", "spec.containers", 1)
	if f.honoured[rule] || isEmpty(value) || rule == "status" || f.isServerDefault(rule, value) {
		return
	}
	if f.ignored[rule] {
		f.notes.Field(f.place.Line(path), f.place.Path(path))
		return
	}
	if !f.inner[rule] {
		why := "this field is not honoured"
		if more := f.reasons[rule]; more != "" {
			why += ": " + more
		}
		f.found.Add(path, "%s", why)
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			f.check(path+"."+name, rule+"."+name, v[name])
		}
	case []any:
		for i, item := range v {
			inner, ok := item.(map[string]any)
			if !ok {
				continue // the strict decoder has refused it
			}
			for _, name := range slices.Sorted(maps.Keys(inner)) {
				f.check(fmt.Sprintf("%s[%d].%s", path, i, name), rule+"[]."+name, inner[name])
			}
		}
	}
}

func (f *rules) isServerDefault(rule string, value any) bool {
	allowed := f.serverDefaults[rule]
	return slices.Contains(allowed, "-") || slices.Contains(allowed, fmt.Sprint(value))
}

// isEmpty reports whether a value is null, {} or [].
func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// CheckKind reports every field of a document that is not honoured, and notes those that
// are ignored. A kind without lists is not checked here.
func CheckKind(doc *document.Document, n *document.Notes) error {
	l, ok := kindLists()[doc.Kind()]
	if !ok {
		return nil
	}
	f := parseLists(l, doc.Place, n)
	for _, name := range slices.Sorted(maps.Keys(doc.Tree)) {
		f.check(name, name, doc.Tree[name])
	}
	return f.found.Err()
}
