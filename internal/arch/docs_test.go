package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestDrawingNamesWhatIsThere: each box in the drawing of the packages has an existing directory as
// its title.
func TestDrawingNamesWhatIsThere(t *testing.T) {
	root := filepath.Join("..", "..")
	drawing, err := os.ReadFile(filepath.Join(root, "docs", "packages.svg"))
	if err != nil {
		t.Fatal(err)
	}
	titles := regexp.MustCompile(`<title>(.*?)</title>`).FindAllSubmatch(drawing, -1)
	if len(titles) < 15 {
		t.Errorf("docs/packages.svg has %d boxes with a title", len(titles))
	}
	for _, title := range titles {
		if _, err := os.Stat(filepath.Join(root, string(title[1]))); err != nil {
			t.Errorf("docs/packages.svg has a box for %s, which is not there", title[1])
		}
	}
}

// TestDocsNameWhatIsThere: the files and packages that the developer docs name exist.
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
