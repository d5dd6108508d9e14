package sysproc_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

func TestRemoveCreatedSinceRemovesOnlyNewFiles(t *testing.T) {
	top := t.TempDir()
	dir, err := os.Open(filepath.Join(makeTree(t, top), "logs"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for path, removed := range map[string]bool{"file": true, "sub/file": true, "empty": false, "link": false, "out/file": false, "../file": false, "file/x": false, "absent": false} {
		if err := sysproc.RemoveCreatedSince(dir, path, time.Now().Add(time.Minute)); err != nil {
			t.Errorf("%s, too old: %v", path, err)
		}
		_, before := os.Lstat(filepath.Join(top, "logs", path))
		if err := sysproc.RemoveCreatedSince(dir, path, time.Now().Add(-time.Minute)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		_, after := os.Lstat(filepath.Join(top, "logs", path))
		if (before == nil && after != nil) != removed {
			t.Errorf("%s: before %v, after %v", path, before, after)
		}
	}
}

// makeTree creates logs/ with files, a directory, and links, and a file beside it.
func makeTree(t *testing.T, top string) string {
	t.Helper()
	for _, dir := range []string{"logs/sub", "logs/empty", "elsewhere"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"file", "logs/file", "logs/sub/file", "elsewhere/file"} {
		if err := os.WriteFile(filepath.Join(top, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"logs/link": "sub/file", "logs/out": "../elsewhere"} {
		if err := os.Symlink(target, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	return top
}
