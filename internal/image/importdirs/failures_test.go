package importdirs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestFailures: an archive that cannot be imported is named until it is correct or gone, also by the next start. The list does
// not keep failures in directories that are not imported from any more.
func TestFailures(t *testing.T) {
	f, root, dir := newFake(t), t.TempDir(), t.TempDir()
	put(t, dir, "a.tar", "bad", time.Hour)
	put(t, dir, "b.tar", "full", time.Hour)
	put(t, dir, "c.tar", "fine", time.Hour)
	bad := "the archive " + filepath.Join(dir, "a.tar") + " of image.import_dirs is not imported: the archive is truncated"
	full := "the archive " + filepath.Join(dir, "b.tar") + " of image.import_dirs is not imported: the disk is full"
	i := f.importer(root, dir)
	look := func(want ...string) {
		t.Helper()
		if i.importAll(t.Context()); !slices.Equal(i.Failures(), want) {
			t.Errorf("%q, want %q", i.Failures(), want)
		}
	}
	look(bad, full)
	i = f.importer(root, dir)
	i.later[filepath.Join(dir, "b.tar")] = attempt{of: i.archives(dir)[1].state}
	look(bad)
	put(t, dir, "a.tar", "good", time.Minute)
	look()
	put(t, dir, "a.tar", "bad again", time.Minute)
	if err := os.Remove(filepath.Join(dir, "b.tar")); err != nil {
		t.Fatal(err)
	}
	look(bad)
	i.SetRules(Rules{Dirs: []string{root}})
	look()
	if _, ok := i.imported().get(filepath.Join(dir, "a.tar")); ok {
		t.Error("the list keeps the failure of a directory that is not imported from")
	}
	if _, ok := i.imported().get(filepath.Join(dir, "c.tar")); !ok {
		t.Error("the list has lost an archive that was imported")
	}
}
