package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// explosive is a record whose check panics on unexpected input.
type explosive struct {
	Bad *bool `json:"bad"`
}

func (e *explosive) Validate() error {
	if *e.Bad {
		panic("bad")
	}
	return nil
}

// A record that makes its reader panic is quarantined like any other unreadable record.
func TestRecordsThatPanicAreQuarantined(t *testing.T) {
	dir := t.TempDir()
	for id, record := range map[string]string{"good": `{"bad":false}`, "bad": `{"bad":true}`, "none": `{}`} {
		data := `{"version":1,"id":"` + id + `","record":` + record + `}`
		if err := os.WriteFile(filepath.Join(dir, id+".json"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, bad, err := Open(Options[explosive]{Path: dir, Quarantine: filepath.Join(t.TempDir(), "quarantine")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"good"}, d.IDs()); diff != "" || len(bad) != 2 {
		t.Errorf("%s, quarantined: %v", diff, bad)
	}
}
