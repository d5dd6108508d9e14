package basespec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"good": `{"process":{"env":["A=b"]}}`, "bad": "{", "long": strings.Repeat(" ", maxFile+1),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if base, err := Read("x", ""); base != nil || err != nil {
		t.Errorf("no file: %v %v", base, err)
	}
	if base, err := Read("x", filepath.Join(dir, "good")); err != nil || len(base.Process.Env) != 1 {
		t.Errorf("%+v %v", base, err)
	}
	for name, want := range map[string]string{"bad": "not an OCI spec", "long": "longer than", "gone": "not found"} {
		path := filepath.Join(dir, name)
		_, err := Read("x", path)
		if errs.Kind(err) != errs.Unavailable || errors.Is(err, errs.NotFound) { //nolint:errorlint // the first kind
			t.Errorf("%s: kind of %v", name, err)
		}
		for _, word := range []string{`handler "x"`, path, want} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want %q", name, err, word)
			}
		}
	}
}
