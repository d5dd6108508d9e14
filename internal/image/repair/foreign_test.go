package repair

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/database"
)

// TestForeignObjectsAreSetAside: what is in the place of the store's own goes to the quarantine as it is.
// Nothing that a link leads to is touched, and what is the store's own stays.
func TestForeignObjectsAreSetAside(t *testing.T) {
	dir := t.TempDir()
	root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	r := Repairer{Paths: database.Paths{Root: root}, Log: slog.New(slog.DiscardHandler)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	blob := filepath.Join(root, "content/blobs/sha256", strings.Repeat("a", 64))
	for _, name := range []string{filepath.Dir(blob), filepath.Join(root, "pool"), filepath.Join(root, "containers/kept"), filepath.Join(outside, "kept")} {
		must(os.MkdirAll(name, 0o700))
	}
	must(os.WriteFile(blob, nil, 0o600))
	must(os.WriteFile(filepath.Join(root, "metadata.db"), nil, 0o600))
	must(r.SetForeignAside())
	if faults := r.Notes(); len(faults) != 0 {
		t.Errorf("a store as it must be: %q", faults)
	}
	must(os.WriteFile(filepath.Join(root, "quarantine"), nil, 0o600))
	must(os.Symlink(outside, filepath.Join(root, "trash")))
	must(os.WriteFile(filepath.Join(root, "snapshots"), nil, 0o600))
	must(unix.Mkfifo(filepath.Join(root, "names.json"), 0o600))
	must(os.MkdirAll(filepath.Join(filepath.Dir(blob), "lost+found"), 0o700))
	must(os.Symlink(outside, filepath.Join(root, "containers/linked")))
	must(unix.Mkfifo(filepath.Join(root, "containers/waiting"), 0o600))
	must(r.SetForeignAside())
	for _, name := range []string{"containers/linked", "containers/waiting", "trash", "snapshots", "names.json", "content/blobs/sha256/lost+found"} {
		if _, err := os.Lstat(filepath.Join(root, name)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	for _, path := range []string{blob, filepath.Join(root, "metadata.db"), filepath.Join(root, "pool"), filepath.Join(root, "containers/kept"), filepath.Join(outside, "kept")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%v", err)
		}
	}
	faults := r.Notes()
	if len(faults) != 1 {
		t.Fatalf("what is said of it: %q", faults)
	}
	for _, want := range []string{"trash was a symbolic link to " + outside, "snapshots was a regular file", "names.json was a named pipe", "lost+found was a directory", r.QuarantineDir()} {
		if !strings.Contains(faults[0], want) {
			t.Errorf("%q does not say %q", faults[0], want)
		}
	}
}
