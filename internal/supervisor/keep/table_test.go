package keep

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	var table Table[int]
	for i, key := range []string{"a/pipes", "a/exec/1", "a/exec/2", "ab/pipes", "a", "exits"} {
		table.Set(key, i)
	}
	table.Set("a/pipes", 7)
	for key, want := range map[string][]string{
		"a":       {"a"},
		"a/":      {"a/exec/1", "a/exec/2", "a/pipes"},
		"a/exec/": {"a/exec/1", "a/exec/2"},
		"a/exec":  nil,
		"b/":      nil,
		"exits":   {"exits"},
	} {
		if diff := cmp.Diff(want, table.Below(key)); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
	table.Delete("a/exec/1")
	table.Delete("none/pipes")
	want := map[string]int{"a/pipes": 7, "a/exec/2": 2, "ab/pipes": 3, "a": 4, "exits": 5}
	if diff := cmp.Diff(want, maps.Collect(table.All())); diff != "" {
		t.Error(diff)
	}
	if value, ok := table.Get("a/pipes"); value != 7 || !ok {
		t.Errorf("a/pipes has %d, %v", value, ok)
	}
	if _, ok := table.Get("a/exec/1"); ok {
		t.Error("a deleted key has a value")
	}
	for _, key := range table.Keys() {
		table.Delete(key)
	}
	if len(table.owners) != 0 {
		t.Errorf("left: %v", table.owners)
	}
}
