package tasks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// JSONKeys sets keys of a JSON file that others write too (docker's daemon.json). It
// owns the top-level keys that it names, and leaves the others as they are.
type JSONKeys struct {
	M    provision.Meta
	Path string
	// Set maps top-level keys to values (strings, bools, numbers, maps, slices).
	Set map[string]any
	// Mode is the mode of a file that does not exist yet; 0644 when zero.
	Mode fs.FileMode
}

// ID is "json PATH".
func (j JSONKeys) ID() string { return "json " + j.Path }

// Meta returns M.
func (j JSONKeys) Meta() provision.Meta { return j.M }

// Objects is the file itself, then its keys.
func (j JSONKeys) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	list := []provision.Object{{Kind: kindJSONFile, Name: j.Path}}
	for _, key := range slices.Sorted(maps.Keys(j.Set)) {
		if key == "" || strings.Contains(key, "#") {
			return nil, fmt.Errorf("key %q of %s: %w", key, j.Path, errs.Invalid)
		}
		list = append(list, provision.Object{Kind: kindJSONKey, Name: j.Path + "#" + key})
	}
	return list, checkPath(j.Path)
}

// Check compares the keys.
func (j JSONKeys) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	old, keys, err := readJSON(host, j.Path)
	if err != nil {
		return provision.Change{}, err
	}
	hidden, err := j.hidden(host)
	if err != nil {
		return provision.Change{}, err
	}
	var diffs []provision.Diff
	want := maps.Clone(keys)
	for _, key := range slices.Sorted(maps.Keys(j.Set)) {
		value, err := json.Marshal(j.Set[key])
		if err != nil {
			return provision.Change{}, fmt.Errorf("cannot write key %q of %s: %w: %w", key, j.Path, errs.Invalid, err)
		}
		d := provision.Diff{Object: provision.Object{Kind: kindJSONKey, Name: j.Path + "#" + key}}
		switch now, ok := keys[key]; {
		case !ok:
			d.Action, d.Reason = provision.Create, "is not there"
		case !sameJSON(now, value):
			d.Action, d.Reason = provision.Modify, "value differs"
		default:
			continue
		}
		d.Fields = []provision.Field{{Name: key, From: provision.SealedValue(host, key, string(keys[key]), hidden), To: provision.SealedValue(host, key, string(value), hidden)}}
		want[key] = value
		diffs = append(diffs, d)
	}
	if len(diffs) > 0 {
		if err := provision.RefuseLink(host.Files(), j.Path); err != nil {
			return provision.Change{}, err
		}
	}
	if len(diffs) > 0 && !hidden {
		data, err := writeJSON(want)
		if err != nil {
			return provision.Change{}, err
		}
		diffs[0].Text = provision.Conceal(host, string(diff.Diff(j.Path, old, j.Path, data)))
	}
	return change(diffs...), nil
}

// hidden reports whether the values must not be shown.
func (j JSONKeys) hidden(host provision.Host) (bool, error) {
	if !provision.Readable(cmp.Or(j.Mode, defaultFileMode)) {
		return true, nil
	}
	return provision.Hidden(host.Files(), j.Path)
}

// Apply sets the keys in one write.
func (j JSONKeys) Apply(_ context.Context, host provision.Host) error {
	_, keys, err := readJSON(host, j.Path)
	if err != nil {
		return err
	}
	for key, value := range j.Set {
		data, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("cannot write key %q of %s: %w: %w", key, j.Path, errs.Invalid, err)
		}
		keys[key] = data
	}
	if err := makeParents(host, j.Path); err != nil {
		return err
	}
	return putJSON(host, j.Path, keys, cmp.Or(j.Mode, defaultFileMode))
}

// readJSON reads a JSON object; an absent or empty file is one without keys.
func readJSON(host provision.Host, path string) ([]byte, map[string]json.RawMessage, error) {
	keys := map[string]json.RawMessage{}
	r, err := host.Files().Open(path)
	if errors.Is(err, errs.NotFound) {
		return nil, keys, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return data, keys, nil
	}
	if err := json.Unmarshal(data, &keys); err != nil {
		return nil, nil, fmt.Errorf("cannot read %s: it is not an object of JSON: %w: %w", path, errs.State, err)
	}
	if keys == nil { // the file says null
		keys = map[string]json.RawMessage{}
	}
	return data, keys, nil
}

func writeJSON(keys map[string]json.RawMessage) ([]byte, error) {
	data, err := json.MarshalIndent(keys, "", "  ")
	return append(data, '\n'), err
}

// putJSON writes keys, with mode if the file does not exist yet.
func putJSON(host provision.Host, path string, keys map[string]json.RawMessage, mode fs.FileMode) error {
	if err := provision.RefuseLink(host.Files(), path); err != nil {
		return err
	}
	attr := provision.Attr{Mode: mode}
	info, err := host.Files().Stat(path)
	switch {
	case err == nil && info.Type == 0:
		attr = provision.Attr{Mode: info.Mode, UID: info.UID, GID: info.GID}
	case err != nil && !errors.Is(err, errs.NotFound):
		return err
	}
	data, err := writeJSON(keys)
	if err != nil {
		return err
	}
	return host.Files().Write(path, bytes.NewReader(data), attr)
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// jsonFileKind is a JSON file whose keys several write: whether it existed, and its exact bytes.
type jsonFileKind struct{ fileKind }

// Restore runs when all our keys are restored. If the rest is unchanged, too, the file gets its old
// bytes; a file that berth created is removed if nobody else wrote to it.
func (jsonFileKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, content provision.Content) error {
	_, keys, err := readJSON(host, name)
	if err != nil {
		return err
	}
	if !state.Exists {
		if len(keys) > 0 {
			return nil
		}
		return host.Files().Remove(name)
	}
	if state.Digest == "" {
		return fileKind{}.Restore(ctx, host, name, state, content)
	}
	before, err := readAll(content)
	if err != nil {
		return err
	}
	old := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(before)) > 0 {
		if err := json.Unmarshal(before, &old); err != nil {
			return fmt.Errorf("cannot read %s as it was: %w", name, err)
		}
	}
	if !maps.EqualFunc(keys, old, func(a, b json.RawMessage) bool { return sameJSON(a, b) }) {
		return nil
	}
	return fileKind{}.Restore(ctx, host, name, state, content)
}

func readAll(content provision.Content) ([]byte, error) {
	r, err := content()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// jsonKeyKind is one key of such a file, named "PATH#KEY".
type jsonKeyKind struct{}

// Path is the file.
func (jsonKeyKind) Path(name string) string { path, _, _ := strings.Cut(name, "#"); return path }

// Read returns the value, in compact form.
func (jsonKeyKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	path, key, _ := strings.Cut(name, "#")
	_, keys, err := readJSON(host, path)
	value, ok := keys[key]
	if err != nil || !ok {
		return provision.State{}, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, value); err != nil {
		return provision.State{}, err
	}
	return provision.State{Exists: true, Attrs: map[string]string{provision.AttrValue: compact.String()}}, nil
}

// Restore sets or removes the key.
func (jsonKeyKind) Restore(_ context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	path, key, _ := strings.Cut(name, "#")
	_, keys, err := readJSON(host, path)
	if err != nil {
		return err
	}
	now, ok := keys[key]
	switch {
	case !state.Exists && !ok, ok && state.Exists && sameJSON(now, []byte(state.Attrs[provision.AttrValue])):
		return nil
	case !state.Exists:
		delete(keys, key)
	default:
		keys[key] = json.RawMessage(state.Attrs[provision.AttrValue])
	}
	return putJSON(host, path, keys, defaultFileMode)
}
