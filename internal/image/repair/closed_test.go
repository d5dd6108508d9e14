package repair

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/helper/program"
)

// checkedStore is a store whose helper notes the databases that it is asked to check.
type checkedStore struct {
	Repairer
	t    *testing.T
	note string
}

func newCheckedStore(t *testing.T) *checkedStore {
	t.Helper()
	dir := t.TempDir()
	s := &checkedStore{t: t, note: filepath.Join(dir, "checks")}
	s.Repairer = Repairer{
		Paths: database.Paths{Root: filepath.Join(dir, "root")}, Log: slog.New(slog.DiscardHandler),
		Helper: program.Command{"/bin/sh", "-c", `echo "$2" >> ` + s.note, "sh"},
	}
	for _, path := range s.databases() {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("a database"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// inspect returns the number of databases that an Inspect checks.
func (s *checkedStore) inspect() int {
	s.t.Helper()
	if err := os.RemoveAll(s.note); err != nil {
		s.t.Fatal(err)
	}
	if damage, err := s.Inspect(s.t.Context()); damage != nil || err != nil {
		s.t.Fatal(damage, err)
	}
	data, err := os.ReadFile(s.note)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return bytes.Count(data, []byte("\n"))
}

// A start after an end in order checks only what was touched since, and so does one after the crash of a daemon
// whose databases were quiet. After another crash or a reboot it checks everything.
func TestDatabasesThatWereClosedAreNotCheckedAgain(t *testing.T) {
	s := newCheckedStore(t)
	metadata, snapshots := s.Paths.MetadataFile(), s.Paths.SnapshotsFile()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	settle := func() {
		for {
			settled, err := s.Quiet()
			must(err)
			if settled {
				return
			}
			time.Sleep(10 * time.Millisecond) // no event says that a time of a file has passed
		}
	}
	for _, c := range []struct {
		what   string
		before func()
		want   int
	}{
		{"the first start", func() {}, 2},
		{"a start after a crash", func() {}, 2},
		{"a start after an end in order", func() { must(s.Closed()) }, 0},
		{"a crash after that", func() {}, 2},
		{"a database that was written to since", func() {
			must(s.Closed())
			must(os.WriteFile(metadata, []byte("a dot-a-base"), 0o600))
		}, 1},
		{"a database that was written to, with its time set back", func() {
			info, err := os.Stat(snapshots)
			must(err)
			must(s.Closed())
			must(os.WriteFile(snapshots, []byte("A database"), 0o600))
			must(os.Chtimes(snapshots, info.ModTime(), info.ModTime()))
		}, 1},
		{"a database that was replaced", func() {
			must(s.Closed())
			must(os.WriteFile(snapshots+".new", []byte("a database"), 0o600))
			must(os.Rename(snapshots+".new", snapshots))
		}, 1},
		{"another boot", func() {
			must(s.Closed())
			data, err := os.ReadFile(s.closedPath())
			must(err)
			must(os.WriteFile(s.closedPath(), []byte(strings.Replace(string(data), `"boot":"`, `"boot":"not-`, 1)), 0o600))
		}, 2},
		{"a crash of a daemon that was quiet", settle, 0},
		{"a write after the databases were quiet", func() {
			settle()
			must(os.WriteFile(metadata, []byte("a dot-a-base"), 0o600))
		}, 1},
		{"a crash before they are quiet again", func() {
			must(os.WriteFile(metadata, []byte("a database"), 0o600))
			if settled, err := s.Quiet(); settled || err != nil {
				t.Errorf("a database that was written to a moment ago: %v, %v", settled, err)
			}
		}, 2},
		{"a damaged note", func() { must(os.WriteFile(s.closedPath(), []byte("{"), 0o600)) }, 2},
	} {
		c.before()
		if got := s.inspect(); got != c.want {
			t.Errorf("%s: %d databases were checked, want %d", c.what, got, c.want)
		}
		if _, err := os.Stat(s.closedPath()); !os.IsNotExist(err) {
			t.Errorf("%s: the note is there while the store is open: %v", c.what, err)
		}
	}
}

// TestContentIsCompared: a disk that changes a bit by itself changes no time of the file.
func TestContentIsCompared(t *testing.T) {
	s := newCheckedStore(t)
	if err := s.Closed(); err != nil {
		t.Fatal(err)
	}
	note, err := os.ReadFile(s.closedPath())
	if err != nil {
		t.Fatal(err)
	}
	path := s.databases()[0]
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	was, err := stateOf(path, info)
	if err != nil {
		t.Fatal(err)
	}
	quoted := []byte(`"` + was.Sum + `"`)
	if n := bytes.Count(note, quoted); n != 2 { // both have the same content
		t.Fatalf("the note has the sums of %d databases: %s", n, note)
	}
	if err := os.WriteFile(s.closedPath(), bytes.Replace(note, quoted, []byte(`"other"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if damage, err := s.Inspect(t.Context()); err != nil || !errors.Is(damage, dbcheck.ErrDamaged) {
		t.Errorf("a database with other content: %v, %v", damage, err)
	}
	// An earlier version noted no sum.
	if err := os.WriteFile(s.closedPath(), bytes.ReplaceAll(note, []byte(`"sum"`), []byte(`"head"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.inspect(); got != 2 {
		t.Errorf("%d databases without a sum are checked", got)
	}
}
