// Package patch applies the patches of kind's configuration files to documents: merge patches (RFC
// 7386) that know kubeadm's lists, and JSON patches (RFC 6902). Documents are plain data; the
// package knows no cluster.
package patch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"go.yaml.in/yaml/v3"
	kubeyaml "sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// Doc is one Kubernetes document, as decoded from JSON.
type Doc map[string]any

// target says which documents a patch is for.
type target struct {
	// APIVersion may be empty: every version.
	APIVersion, Kind string
}

func (t target) matches(d Doc) bool {
	return d["kind"] == t.Kind && (t.APIVersion == "" || d["apiVersion"] == t.APIVersion)
}

// Merge is a merge patch.
type Merge struct {
	target
	body Doc
}

// ParseMerge reads merge patches: YAML or JSON, one or several documents. Each must have a kind.
func ParseMerge(text string) ([]Merge, error) {
	docs, err := Parse(text)
	if err != nil {
		return nil, err
	}
	patches := make([]Merge, 0, len(docs))
	for _, doc := range docs {
		kind, _ := doc["kind"].(string)
		version, _ := doc["apiVersion"].(string)
		if kind == "" {
			return nil, fmt.Errorf("a patch must say the kind of document that it changes: %w", errs.Invalid)
		}
		patches = append(patches, Merge{target{version, kind}, doc})
	}
	return patches, nil
}

// JSON6902 is a list of operations.
type JSON6902 struct {
	target
	ops jsonpatch.Patch
}

// ParseJSON6902 reads a list of operations, YAML or JSON, for documents of a kind.
// group and version may both be empty: every version.
func ParseJSON6902(group, version, kind, text string) (JSON6902, error) {
	ops, err := parseOps(text)
	if err != nil {
		return JSON6902{}, err
	}
	if group != "" {
		version = group + "/" + version
	}
	return JSON6902{target{version, kind}, ops}, nil
}

func parseOps(text string) (jsonpatch.Patch, error) {
	raw, err := kubeyaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errs.Invalid, err)
	}
	var list []operation
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("a JSON patch is a list of operations: %w", errs.Invalid)
	}
	for i, op := range list {
		if problem := op.problem(); problem != "" {
			return nil, fmt.Errorf("operation %d: %s: %w", i+1, problem, errs.Invalid)
		}
	}
	ops, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errs.Invalid, err)
	}
	return ops, nil
}

// operation has the fields that every operation of a JSON patch needs.
type operation struct {
	Op         string
	Path, From *string
}

// problem says what is wrong with an operation; "" for nothing.
func (o operation) problem() string {
	switch o.Op {
	case "add", "remove", "replace", "test":
	case "move", "copy":
		if o.From == nil {
			return o.Op + " has no from"
		}
	default:
		return fmt.Sprintf("%q: want one of add, remove, replace, move, copy, test", o.Op)
	}
	switch {
	case o.Path == nil:
		return "has no path"
	case *o.Path != "" && !strings.HasPrefix(*o.Path, "/"):
		return fmt.Sprintf("path %q must begin with /", *o.Path)
	}
	return ""
}

// Apply applies to each document the merge patches for it, in their order, then the JSON patches.
// Patches without a document change nothing.
func Apply(docs []Doc, merges []Merge, ops []JSON6902) ([]Doc, error) {
	patched := make([]Doc, 0, len(docs))
	for _, doc := range docs {
		var err error
		for _, m := range merges {
			if !m.matches(doc) {
				continue
			}
			if doc, err = mergeKubeadm(doc, m.body); err != nil {
				return nil, fmt.Errorf("cannot merge a patch into %s: %w", m.Kind, err)
			}
		}
		for _, o := range ops {
			if !o.matches(doc) {
				continue
			}
			changed, err := applyOps(doc, o.ops)
			if err != nil {
				return nil, fmt.Errorf("cannot apply a JSON patch to %s: %w", o.Kind, err)
			}
			doc = Doc(changed)
		}
		patched = append(patched, doc)
	}
	return patched, nil
}

func applyOps(doc map[string]any, ops jsonpatch.Patch) (map[string]any, error) {
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	raw, err = ops.Apply(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errs.Invalid, err)
	}
	var changed map[string]any
	if err := json.Unmarshal(raw, &changed); err != nil {
		return nil, fmt.Errorf("the document is not a mapping any more: %w", errs.Invalid)
	}
	return changed, nil
}

// merge is RFC 7386: mappings are merged, null removes, all else replaces. It changes neither
// input.
func merge(into, patch map[string]any) map[string]any {
	merged := make(map[string]any, len(into)+len(patch))
	for key, value := range into {
		merged[key] = value
	}
	for key, value := range patch {
		nested, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(merged, key)
		case isMap:
			old, _ := merged[key].(map[string]any)
			merged[key] = merge(old, nested)
		default:
			merged[key] = value
		}
	}
	return merged
}

// Parse reads a stream of documents, without empty ones.
func Parse(text string) ([]Doc, error) {
	var docs []Doc
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errs.Invalid, err)
		}
		var out bytes.Buffer
		if err := yaml.NewEncoder(&out).Encode(&node); err != nil {
			return nil, err
		}
		var doc any
		if err := kubeyaml.Unmarshal(out.Bytes(), &doc); err != nil {
			return nil, fmt.Errorf("%w: %w", errs.Invalid, err)
		}
		switch doc := doc.(type) {
		case nil:
		case map[string]any:
			docs = append(docs, doc)
		default:
			return nil, fmt.Errorf("%T is no Kubernetes document; want a mapping: %w", doc, errs.Invalid)
		}
	}
}

// Render writes documents as one stream of YAML.
func Render(docs []Doc) (string, error) {
	var b strings.Builder
	for i, doc := range docs {
		if i > 0 {
			b.WriteString("---\n")
		}
		text, err := kubeyaml.Marshal(doc)
		if err != nil {
			return "", fmt.Errorf("cannot write %v: %w", doc["kind"], err)
		}
		b.Write(text)
	}
	return b.String(), nil
}
