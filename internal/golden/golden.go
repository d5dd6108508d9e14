// Package golden compares the output of a test with a file beside it.
package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check compares got with the file. With BERTH_GOLDEN=update in the environment it
// rewrites the file; the diff of the commit shows the change.
func Check(t testing.TB, file, got string) {
	t.Helper()
	if os.Getenv("BERTH_GOLDEN") == "update" {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (BERTH_GOLDEN=update go test writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs from the output (-want +got; BERTH_GOLDEN=update go test rewrites it):\n%s", file, diff)
	}
}
