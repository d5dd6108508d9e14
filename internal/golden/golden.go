// Package golden compares what a test made with a file that is kept beside it.
package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check compares got with the file. With BERTH_GOLDEN=update in the environment it
// writes the file anew, which whoever does it reads in the diff of the commit.
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
		t.Errorf("%s is not what was made (-want +got; BERTH_GOLDEN=update go test writes it anew):\n%s", file, diff)
	}
}
