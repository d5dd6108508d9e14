package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestDocsNameWhatIsThere: files and packages that docs for developers name.
func TestDocsNameWhatIsThere(t *testing.T) {
	root := filepath.Join("..", "..")
	place := regexp.MustCompile("`((?:internal|test|docs|cmd)/[a-z0-9_./-]+)`")
	for _, doc := range []string{"docs/changing.md", "docs/architecture.md", "docs/request-lifecycle.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range place.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, found[1])); err != nil {
				t.Errorf("%s names %s, which is not there", doc, found[1])
			}
		}
	}
}
