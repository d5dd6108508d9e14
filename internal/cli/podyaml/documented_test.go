package podyaml

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDocumentedFieldSets: berth accepts the combinations of fields in the manifests of Kubernetes'
// documentation. Each combination is in a manifest of our own.
func TestDocumentedFieldSets(t *testing.T) {
	files, err := filepath.Glob("testdata/documented/*.yaml")
	if err != nil || len(files) < 25 {
		t.Fatalf("only %d files: %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(data); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
	}
}
