package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxFiles is the maximum number of files in a package, without tests. In a larger package it is
// hard to find the right file.
const maxFiles = 15

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
	for pkg, n := range files {
		if n > maxFiles {
			t.Errorf("%s has %d files, more than %d: divide it", pkg, n, maxFiles)
		}
	}
}
