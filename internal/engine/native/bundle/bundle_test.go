package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// TestProcessOfABundle: Exec reads the file with the process alone, or the whole spec if an older
// version wrote only that.
func TestProcessOfABundle(t *testing.T) {
	s := Store{Root: t.TempDir()}
	if _, err := s.ReadProcess("box"); !errors.Is(err, errs.NotFound) {
		t.Errorf("no bundle: %v", err)
	}
	want := &specs.Process{Args: []string{"sleep", "1"}, Env: []string{"A=b"}, Cwd: "/"}
	if err := s.Write("box", &specs.Spec{Version: "1.2.0", Process: want}); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"", processFile, specFile} {
		if gone != "" {
			if err := os.Rename(filepath.Join(s.Dir("box"), gone), filepath.Join(t.TempDir(), gone)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.ReadProcess("box")
		if gone == specFile {
			if !errors.Is(err, errs.NotFound) {
				t.Errorf("nothing is left: %v", err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("without %q: %+v, %v", gone, got, err)
		}
	}
}
