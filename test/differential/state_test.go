//go:build integration

package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// stateOf is the state of a container as runc reads it, flattened to one line for each value.
func (s *side) stateOf(id string) (observation, error) {
	o := observation{}
	dir := filepath.Join(s.state, "runc", id)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		o.add("state directory", "%s %v %s", e.Name(), info.Mode(), ownerText(info.Sys()))
	}
	data, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return nil, err
	}
	var state map[string]any
	if err := json.Unmarshal(data, &state); err != nil {
		return nil, err
	}
	for _, changes := range []string{"init_process_pid", "init_process_start", "created"} {
		if state[changes] == nil {
			o.add("state", "%s is missing", changes)
		}
		delete(state, changes)
	}
	namespaces, _ := state["namespace_paths"].(map[string]any)
	o.add("state", "namespace paths of %v", slices.Sorted(maps.Keys(namespaces)))
	delete(state, "namespace_paths")
	s.flatten(o, "", state)
	return o, nil
}

func (s *side) flatten(o observation, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			s.flatten(o, path+"."+key, v[key])
		}
	case []any:
		if path == ".config.labels" { // they come from a map, in any order
			slices.SortFunc(v, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		for i, element := range v {
			s.flatten(o, fmt.Sprintf("%s[%d]", path, i), element)
		}
	default:
		o.add("state", "%s = %s", path, s.normal(s.named(fmt.Sprint(v))))
	}
}

// copyOf decodes a copy of a value in which the tokens are replaced.
func (s *side) copyOf(from, to any) error {
	data, err := s.of(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, to)
}

// ownerText is the owner of a file.
func ownerText(sys any) string {
	st, ok := sys.(*syscall.Stat_t)
	if !ok {
		return "?"
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}
