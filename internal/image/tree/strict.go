package tree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Two readers of one document may see two images: one takes the first of two keys, and one the last; one distinguishes
// upper and lower case, and encoding/json does not. What a scanner has seen must be what runs.

// isOpen reports whether people choose the keys of the object that a field has: there "a" and "A" are two keys for all
// readers.
func isOpen(field string) bool {
	switch field {
	case "annotations", "Labels", "Volumes", "ExposedPorts":
		return true
	}
	return false
}

// CheckKeys returns Invalid for a valid JSON document with an object that has a key twice, or twice but for the case of letters.
func CheckKeys(document []byte) error {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var stack []*object
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("is not JSON: %w: %w", err, errs.Invalid)
		}
		top := &object{} // what is around the document counts as an array
		if len(stack) > 0 {
			top = stack[len(stack)-1]
		}
		switch token {
		case json.Delim('{'):
			stack = append(stack, &object{keys: map[string]string{}, open: isOpen(top.field)})
		case json.Delim('['):
			stack = append(stack, &object{})
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:len(stack)-1]
			continue
		default:
			if key, ok := token.(string); ok && top.keys != nil && !top.valued {
				if err := top.add(key); err != nil {
					return err
				}
				continue
			}
		}
		top.valued, top.field = false, ""
	}
}

// object is a JSON object, or an array, which has no keys.
type object struct {
	keys map[string]string
	open bool
	// field is the last key; valued: its value comes next.
	field  string
	valued bool
}

func (o *object) add(key string) error {
	folded := key
	if !o.open {
		folded = strings.ToLower(strings.ToUpper(key)) // both, as some letters have two lower-case forms
	}
	if other, twice := o.keys[folded]; twice {
		return fmt.Errorf("has the keys %.100q and %.100q in one object, of which readers take different ones: %w", other, key, errs.Invalid)
	}
	o.keys[folded], o.field, o.valued = key, key, true
	return nil
}

// checkForm returns Invalid for a document that is an index to one reader and a manifest to another.
func checkForm(desc imagespec.Descriptor, document []byte) error {
	var form struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Layers    []json.RawMessage `json:"layers"`
		FSLayers  []json.RawMessage `json:"fsLayers"`
		Config    json.RawMessage   `json:"config"`
	}
	if err := json.Unmarshal(document, &form); err != nil {
		return fmt.Errorf("is neither an index nor a manifest: %w: %w", err, errs.Invalid)
	}
	index := len(form.Manifests) > 0
	manifest := len(form.Layers)+len(form.FSLayers) > 0 || len(form.Config) > 0 && !bytes.Equal(form.Config, []byte("null"))
	if index && manifest {
		return fmt.Errorf("has the fields of an index and those of a manifest: %w", errs.Invalid)
	}
	for _, mediaType := range []string{desc.MediaType, form.MediaType} {
		if images.IsIndexType(mediaType) && manifest || images.IsManifestType(mediaType) && index {
			return fmt.Errorf("has the media type %.100q and other fields than that has: %w", mediaType, errs.Invalid)
		}
	}
	if images.IsIndexType(desc.MediaType) && images.IsManifestType(form.MediaType) || images.IsManifestType(desc.MediaType) && images.IsIndexType(form.MediaType) {
		return fmt.Errorf("says that it is %.100q: %w", form.MediaType, errs.Invalid)
	}
	return nil
}
