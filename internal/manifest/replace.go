package manifest

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/berthrun/berth/internal/errs"
)

// Replace writes a document with other values: replace is called with each scalar. Keys stay.
// Comments are removed, because a value may be in one.
func Replace(data []byte, replace func(value string) string) ([]byte, error) {
	top, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("cannot read the document: %w: %w", errs.Invalid, err)
	}
	if top == nil {
		return nil, nil
	}
	replaceIn(top, replace)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(top); err != nil {
		return nil, fmt.Errorf("cannot write the document: %w", err)
	}
	return out.Bytes(), nil
}

func replaceIn(node *yaml.Node, replace func(string) string) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 {
			child.HeadComment, child.LineComment, child.FootComment = "", "", ""
			continue
		}
		replaceIn(child, replace)
	}
	if node.Kind != yaml.ScalarNode {
		return
	}
	if value := replace(node.Value); value != node.Value {
		node.Value, node.Style, node.Tag = value, 0, "!!str"
	}
}
