package podyaml

import (
	"fmt"
	"slices"
	"strings"
)

// notes gathers what has no effect here.
type notes struct {
	fields []string
	kinds  []string
	others []string
}

func (n *notes) field(line int, path string) {
	n.fields = append(n.fields, fmt.Sprintf("%s (line %d)", path, line))
}

func (n *notes) kind(doc *document) {
	name := ""
	if meta, ok := doc.tree["metadata"].(map[string]any); ok {
		name = " " + fmt.Sprint(meta["name"])
	}
	n.kinds = append(n.kinds, fmt.Sprintf("%v%s (line %d)", doc.tree["kind"], name, doc.place.line("kind")))
}

func (n *notes) add(line string) { n.others = append(n.others, line) }

// lines are the notes, one for all fields and one for all kinds.
func (n *notes) lines() []string {
	var out []string
	if len(n.fields) > 0 {
		out = append(out, "ignored, there is one node and no API server: "+strings.Join(slices.Compact(n.fields), ", "))
	}
	if len(n.kinds) > 0 {
		out = append(out, "ignored, they are for a cluster: "+strings.Join(n.kinds, ", "))
	}
	return append(out, n.others...)
}
