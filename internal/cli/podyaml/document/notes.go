package document

import (
	"fmt"
	"slices"
	"strings"
)

// Notes gathers what has no effect here.
type Notes struct {
	fields []string
	kinds  []string
	others []string
}

// Field notes a field that has no effect.
func (n *Notes) Field(line int, path string) {
	n.fields = append(n.fields, fmt.Sprintf("%s (line %d)", path, line))
}

// Kind notes a document of a kind that has no effect.
func (n *Notes) Kind(doc *Document) {
	name := ""
	if meta, ok := doc.Tree["metadata"].(map[string]any); ok {
		name = " " + fmt.Sprint(meta["name"])
	}
	n.kinds = append(n.kinds, fmt.Sprintf("%v%s (line %d)", doc.Tree["kind"], name, doc.Place.Line("kind")))
}

// Add notes a line of its own.
func (n *Notes) Add(line string) { n.others = append(n.others, line) }

// Lines are the notes, one for all fields and one for all kinds.
func (n *Notes) Lines() []string {
	var out []string
	if len(n.fields) > 0 {
		out = append(out, "ignored, there is one node and no API server: "+strings.Join(slices.Compact(n.fields), ", "))
	}
	if len(n.kinds) > 0 {
		out = append(out, "ignored, they are for a cluster: "+strings.Join(n.kinds, ", "))
	}
	return append(out, n.others...)
}
