package golden_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/golden"
)

// told counts the errors that a check reports.
type told struct {
	testing.TB
	errors int
}

func (c *told) Helper()               {}
func (c *told) Errorf(string, ...any) { c.errors++ }

func TestCheckTellsADifference(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte("kept\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]int{"kept\n": 0, "other\n": 1} {
		c := &told{TB: t}
		golden.Check(c, file, got)
		if c.errors != want {
			t.Errorf("%q: %d complaints, want %d", got, c.errors, want)
		}
	}
}

func TestUpdateWrites(t *testing.T) {
	t.Setenv("BERTH_GOLDEN", "update")
	file := filepath.Join(t.TempDir(), "new", "text")
	golden.Check(t, file, "made\n")
	if text, err := os.ReadFile(file); err != nil || string(text) != "made\n" {
		t.Errorf("%q, %v", text, err)
	}
}
