package dbcheck_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/helper/program"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == dbcheck.Arg {
		os.Exit(dbcheck.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// database creates a database with nested buckets and some hundred pages.
func database(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "metadata.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 10 {
		err = errors.Join(err, db.Update(func(tx *bbolt.Tx) error {
			top, err := tx.CreateBucketIfNotExists([]byte("v1"))
			if err != nil {
				return err
			}
			for i := range 200 {
				b, err := top.CreateBucketIfNotExists(fmt.Appendf(nil, "image-%d", i))
				if err != nil {
					return err
				}
				if err := b.Put(fmt.Appendf(nil, "key-%d", round), make([]byte, 300)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func check(t *testing.T, path string) error {
	t.Helper()
	return dbcheck.Check(t.Context(), program.Command{"/proc/self/exe"}, path)
}

func TestHealthyDatabases(t *testing.T) {
	if err := check(t, database(t)); err != nil {
		t.Errorf("a healthy database: %v", err)
	}
	if err := check(t, filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("no database: %v", err)
	}
}

func TestDatabaseOfAnotherProcess(t *testing.T) {
	path := database(t)
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := check(t, path); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a database that another has: %v", err)
	}
}

// TestDamage overwrites each page in turn. No damage crashes or blocks the check, and the check
// finds each damage that a reader could meet.
func TestDamage(t *testing.T) {
	page := os.Getpagesize()
	whole, err := os.ReadFile(database(t))
	if err != nil {
		t.Fatal(err)
	}
	junk := make([]byte, page)
	if _, err := rand.Read(junk); err != nil {
		t.Fatal(err)
	}
	overwrite := func(at int, with []byte) []byte {
		data := append([]byte{}, whole...)
		copy(data[at:], with)
		return data
	}
	cases := map[string][]byte{
		"no bytes":          {},
		"zeros":             make([]byte, len(whole)),
		"first two pages":   overwrite(0, make([]byte, 2*page)),
		"first four, junk":  overwrite(0, append(append(append(append([]byte{}, junk...), junk...), junk...), junk...)),
		"half":              whole[:len(whole)/2/page*page],
		"half, mid page":    whole[:len(whole)/2+17],
		"one page":          whole[:page],
		"a line of text":    []byte("not a database\n"),
		"all pages but two": overwrite(2*page, make([]byte, len(whole)-2*page)),
	}
	for name, data := range cases {
		path := filepath.Join(t.TempDir(), "metadata.db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := check(t, path); !errors.Is(err, dbcheck.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	found := 0
	pages := len(whole) / page
	deadline := time.Now().Add(20 * time.Second)
	tried := 0
	for i := 2; i < pages && time.Now().Before(deadline); i += max(1, pages/20) {
		path := filepath.Join(t.TempDir(), "metadata.db")
		if err := os.WriteFile(path, overwrite(i*page, junk), 0o600); err != nil {
			t.Fatal(err)
		}
		tried++
		err := check(t, path)
		if errors.Is(err, dbcheck.ErrDamaged) {
			found++
		} else if err != nil {
			t.Errorf("page %d: %v", i, err)
		}
	}
	t.Logf("%d of %d damaged pages found; the others are free", found, tried)
	if found == 0 {
		t.Error("no damaged inner page was found")
	}
}
