package store

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRecordsThatALossOfPowerTook: an empty file from an earlier boot is no damage where records are not synced. What else
// cannot be read is.
func TestRecordsThatALossOfPowerTook(t *testing.T) {
	before := time.Now().Add(-100 * 365 * 24 * time.Hour)
	for _, c := range []struct {
		name, content     string
		written           time.Time
		unsynced, keep    bool
		lost, quarantined bool
	}{
		{name: "empty", written: before, unsynced: true, lost: true},
		{name: "empty, and its name is kept", written: before, unsynced: true, keep: true, lost: true},
		{name: "empty, by a clock that was ahead", written: time.Now().Add(time.Hour), unsynced: true, lost: true},
		{name: "empty, of this boot", written: time.Now(), unsynced: true, quarantined: true},
		{name: "empty, where records are synced", written: before, quarantined: true},
		{name: "cut off", content: `{"version":1,"id":"gone","rec`, written: before, unsynced: true, quarantined: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			opts := Options[thing]{Path: filepath.Join(dir, "things"), Quarantine: filepath.Join(dir, "quarantine"), Unsynced: c.unsynced}
			if c.keep {
				opts.KeepLost = filepath.Join(dir, "lost")
			}
			file := filepath.Join(opts.Path, "gone.json")
			if err := os.Mkdir(opts.Path, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(file, c.written, c.written); err != nil {
				t.Fatal(err)
			}
			d, bad, err := Open(opts)
			if err != nil || len(d.IDs()) > 0 || len(bad) != 1 || bad[0].Lost != c.lost || bad[0].Err == nil {
				t.Fatalf("%v, %+v", err, bad)
			}
			if c.lost && bad[0].Path != file {
				t.Errorf("reported as %s", bad[0].Path)
			}
			for at, want := range map[string]bool{"things/*.json": false, "quarantine/*": c.quarantined, "lost/gone.json": c.keep} {
				if found, err := filepath.Glob(filepath.Join(dir, at)); err != nil || len(found) > 0 != want {
					t.Errorf("%s has %q, %v", at, found, err)
				}
			}
			if err := d.Create("gone", &thing{}); err != nil {
				t.Errorf("its id is not free: %v", err)
			}
		})
	}
}

// calls is a disk that notes how files are written.
type calls struct {
	Disk
	made []string
}

func (c *calls) WriteWhole(path string, data []byte) error {
	c.made = append(c.made, "whole "+filepath.Base(path))
	return c.Disk.WriteWhole(path, data)
}

func (c *calls) Sync(dir string) error {
	c.made = append(c.made, "sync "+filepath.Base(dir))
	return c.Disk.Sync(dir)
}

// TestWholeRecords: the owner of the records says which are on the disk before they have their names.
func TestWholeRecords(t *testing.T) {
	dir, disk := t.TempDir(), &calls{Disk: FileSystem{}}
	d, _, err := Open(Options[thing]{Path: filepath.Join(dir, "things"), Disk: disk, Whole: func(v *thing) bool { return v.Count > 1 }})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Create("a", &thing{Count: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Update("a", func(v *thing) error { v.Count = 2; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"whole a.json", "sync things"}, disk.made); diff != "" {
		t.Error(diff)
	}
	d, bad, err := Open(Options[thing]{Path: filepath.Join(dir, "things")})
	if err != nil || len(bad) > 0 || !slices.Equal(d.IDs(), []string{"a"}) || d.All()[0].Count != 2 {
		t.Errorf("%v, %v, %v", d.All(), bad, err)
	}
}
