package store

import (
	"cmp"
	"fmt"
	"path/filepath"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// openRanked opens a store in which the object with the higher count keeps a name.
func openRanked(t *testing.T, dir string) *Dir[thing] {
	t.Helper()
	d, _, err := Open(Options[thing]{
		Path: filepath.Join(dir, "things"), Quarantine: filepath.Join(dir, "quarantine"),
		Name:  func(v *thing) string { return v.Name },
		Prior: func(a, b *thing) int { return cmp.Compare(b.Count, a.Count) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func assertName(t *testing.T, d *Dir[thing], name, want string) {
	t.Helper()
	if id, _, ok := d.ByName(name); id != want || ok != (want != "") {
		t.Errorf("ByName(%q) = %q, %v; want %q", name, id, ok, want)
	}
}

// Files from any source may contain a name twice. The name refers to the record that the rule
// selects, and does not depend on the order in which the records were read.
func TestSharedNames(t *testing.T) {
	dir := t.TempDir()
	d := openRanked(t, dir)
	for i := range 40 {
		name, count := "twice", 0
		if i >= 30 {
			name = fmt.Sprint("own", i)
		}
		if i == 17 {
			count = 2
		}
		if err := d.Create(fmt.Sprintf("id%02d", i), &thing{Name: name, Count: count}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		d := openRanked(t, dir)
		assertName(t, d, "twice", "id17")
		shared := d.Shared()
		if len(shared) != 1 || len(shared[0]) != 30 || !gocmp.Equal(shared[0][:3], []string{"id17", "id00", "id01"}) {
			t.Fatalf("shared names: %v", shared)
		}
	}

	// After an update or a removal of a record, the name still refers to the record that the rule
	// selects.
	d = openRanked(t, dir)
	if _, err := d.Update("id03", func(v *thing) error { v.Config = d.entries["id17"].value.Config; return nil }); err != nil {
		t.Fatal(err)
	}
	assertName(t, d, "twice", "id17")
	if err := d.Delete("id03"); err != nil {
		t.Fatal(err)
	}
	assertName(t, d, "twice", "id17")
	if err := d.Delete("id17"); err != nil {
		t.Fatal(err)
	}
	assertName(t, d, "twice", "id00")
	for i := range 30 {
		if err := d.Delete(fmt.Sprintf("id%02d", i)); err != nil {
			t.Fatal(err)
		}
	}
	assertName(t, d, "twice", "")
	if shared := d.Shared(); len(shared) != 0 || len(d.names) != 10 {
		t.Errorf("shared names %v, names %v", shared, d.names)
	}
}
