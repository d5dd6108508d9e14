package store

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// A group has exactly the records of the Dir that belong to it, also after a new start.
func TestGroups(t *testing.T) {
	dir := t.TempDir()
	reopen := func() *Dir[thing] {
		d, _, err := Open(Options[thing]{
			Path: filepath.Join(dir, "things"), Quarantine: filepath.Join(dir, "quarantine"),
			Group: func(v *thing) string { return v.Name },
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	check := func(d *Dir[thing], want map[string]int) {
		t.Helper()
		for _, group := range []string{"a", "b", "none"} {
			got := d.InGroup(group)
			for _, v := range got {
				if v.Name != group {
					t.Errorf("group %s has %v", group, v)
				}
			}
			if len(got) != want[group] {
				t.Errorf("group %s has %d records, want %d", group, len(got), want[group])
			}
		}
	}
	d := reopen()
	for id, group := range map[string]string{"1": "a", "2": "a", "3": "b"} {
		if err := d.Create(id, &thing{Name: group}); err != nil {
			t.Fatal(err)
		}
	}
	check(d, map[string]int{"a": 2, "b": 1})
	if _, err := d.Update("1", func(v *thing) error { v.Count = 7; return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(d.InGroup("a"), func(v *thing) bool { return v.Count == 7 }) {
		t.Error("a group has the record of before an update")
	}
	check(reopen(), map[string]int{"a": 2, "b": 1})
	for _, id := range []string{"1", "3"} {
		if err := d.Delete(id); err != nil {
			t.Fatal(err)
		}
	}
	check(d, map[string]int{"a": 1})
	if len(d.groups) != 1 {
		t.Errorf("groups are left: %v", d.groups)
	}
}

// Since returns the records again after each change, and only then.
func TestSince(t *testing.T) {
	d, _ := open(t, t.TempDir(), nil)
	_, seen, fresh := d.Since(0)
	if !fresh {
		t.Fatal("the first look is not fresh")
	}
	unchanged := func() {
		t.Helper()
		if all, version, fresh := d.Since(seen); fresh || all != nil || version != seen {
			t.Errorf("without a change: %v, %d, %v", all, version, fresh)
		}
	}
	changed := func(count int) {
		t.Helper()
		all, version, fresh := d.Since(seen)
		if !fresh || len(all) != count || version == seen {
			t.Errorf("after a change: %v, %d, %v; want %d records", all, version, fresh, count)
		}
		seen = version
		unchanged()
	}
	unchanged()
	if err := d.Create("1", &thing{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	changed(1)
	if _, err := d.Update("1", func(*thing) error { return errs.State }); err == nil {
		t.Fatal("no error")
	}
	unchanged()
	if _, err := d.Update("1", func(v *thing) error { v.Count++; return nil }); err != nil {
		t.Fatal(err)
	}
	changed(1)
	if err := d.Delete("1"); err != nil {
		t.Fatal(err)
	}
	changed(0)
}
