package dbcheck

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// TestNumbersOfPages changes each bit in the numbers of pages and of their elements: bbolt would leave out entries, read
// garbage, or panic when it writes.
func TestNumbersOfPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metadata.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(db.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"one", "two"} {
			b, err := tx.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			inPlace, err := b.CreateBucket([]byte("in place"))
			if err != nil {
				return err
			}
			if err := errors.Join(b.Put([]byte("key"), []byte(name)), inPlace.Put([]byte("key"), []byte(name))); err != nil {
				return err
			}
		}
		return nil
	}), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	changed := filepath.Join(t.TempDir(), "metadata.db")
	leaf := -1
	for at := 2 * page; at+page <= len(whole); at += page { // the newest is the one that is used
		if whole[at+8] == 2 && whole[at+10] == 2 {
			leaf = at
		}
	}
	if leaf < 0 {
		t.Fatal("no page is a leaf of two buckets")
	}
	// The page's header and the list of its two elements; one flag of each leads to a bucket.
	for at := leaf; at < leaf+16+2*16; at++ {
		for bit := range 8 {
			data := append([]byte{}, whole...)
			data[at] ^= 1 << bit
			switch {
			case at == leaf+16 && bit == 0, at == leaf+32 && bit == 0:
				continue // the element is a value then, which the layout allows
			case at == leaf+10 && bit == 1:
				continue // no elements: a new database has none
			}
			if err := os.WriteFile(changed, data, 0o600); err != nil {
				t.Fatal(err)
			}
			db, err := bbolt.Open(changed, 0o600, &bbolt.Options{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			if db.View(func(tx *bbolt.Tx) error { return checkLayout(changed, tx) }) == nil {
				t.Errorf("bit %d of byte %d of the page is not found", bit, at-leaf)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
