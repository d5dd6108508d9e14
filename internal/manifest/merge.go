package manifest

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// entry is one key of a mapping and its value.
type entry struct{ key, value *yaml.Node }

// entries returns what a mapping holds: its own keys, then those that it merges
// ("<<") and does not have itself.
func (r *Reader) entries(path string, node *yaml.Node) []entry {
	var own []entry
	var merged []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Tag == "!!merge" {
			merged = append(merged, value)
			continue
		}
		own = append(own, entry{key, value})
	}
	all := own
	for _, value := range merged {
		for _, e := range r.merged(path, value, nil) {
			if !slices.ContainsFunc(all, func(o entry) bool { return o.key.Value == e.key.Value }) {
				all = append(all, e)
			}
		}
	}
	return all
}

// merged returns the entries that a merge key's value brings, the first of each
// name first. above are the mappings that are being merged, so that one which
// merges itself ends.
func (r *Reader) merged(path string, value *yaml.Node, above []*yaml.Node) []entry {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch {
	case slices.Contains(above, value):
		r.Fault(path, "merges itself; leave that out")
		return nil
	case value.Kind == yaml.SequenceNode:
		var all []entry
		for _, item := range value.Content {
			all = append(all, r.merged(path, item, append(above, value))...)
		}
		return all
	case value.Kind != yaml.MappingNode:
		r.Fault(path, "%s: << wants a mapping or a list of them", describe(value))
		return nil
	}
	if !r.countValues(path, len(value.Content)) {
		return nil
	}
	var all, deeper []entry
	for i := 0; i+1 < len(value.Content); i += 2 {
		if value.Content[i].Tag == "!!merge" {
			deeper = append(deeper, r.merged(path, value.Content[i+1], append(above, value))...)
			continue
		}
		all = append(all, entry{value.Content[i], value.Content[i+1]})
	}
	return append(all, deeper...)
}
