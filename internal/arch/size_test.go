package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxFiles is how many files a package has at most, tests apart: more, and nobody finds
// the right one.
const maxFiles = 15

// grown are the packages that have more, with their number of files today. The list
// shrinks: a package that is in it may not grow, and leaves it when it fits.
func grown() map[string]int {
	return map[string]int{
		"internal/provision/node":  19,
		"internal/provision/tasks": 16,
	}
}

// TestPackagesAreSmall: a package has at most maxFiles files.
func TestPackagesAreSmall(t *testing.T) {
	root := filepath.Join("..", "..")
	files := map[string]int{}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			files[filepath.ToSlash(pkg)]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	allowed := grown()
	for pkg, n := range files {
		switch limit, listed := allowed[pkg]; {
		case listed && n <= maxFiles:
			t.Errorf("%s has %d files: take it off the list", pkg, n)
		case listed && n != limit:
			t.Errorf("%s has %d files, and had %d: a package on the list may only shrink, and the list with it", pkg, n, limit)
		case !listed && n > maxFiles:
			t.Errorf("%s has %d files, more than %d: divide it", pkg, n, maxFiles)
		}
		delete(allowed, pkg)
	}
	for pkg := range allowed {
		t.Errorf("%s is on the list, and is not there", pkg)
	}
}
