package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRead: a record is read as its owner reads it, and nothing is changed.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	d, _ := open(t, dir, nil)
	if err := d.Create("abc", &thing{Name: "one", Count: 3}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "things", "abc.json")
	if got, err := Read[thing](file); err != nil || got.Name != "one" || got.Count != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := Read[thing](file + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
	if err := os.Truncate(file, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := Read[thing](file); err == nil || !strings.Contains(err.Error(), "the record is damaged") {
		t.Errorf("a damaged file: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the damaged file is not in its place: %v", err)
	}
}
