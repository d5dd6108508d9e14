//go:build integration

package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// compact leaves in the databases of a store only the pages that are in use: each flipped bit counts.
func (f *damagedStore) compact(t *testing.T) {
	t.Helper()
	for _, path := range f.databases {
		path = filepath.Join(f.root, path)
		from, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		to, err := bbolt.Open(path+".compact", 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(bbolt.Compact(to, from, 0), to.Close(), from.Close(), os.Rename(path+".compact", path)); err != nil {
			t.Fatal(err)
		}
	}
}

// flipAt flips a bit of a byte of a file.
func flipAt(at int, bit uint) func(path, outside string) error {
	return func(path, _ string) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data[at] ^= 1 << bit
		return os.WriteFile(path, data, 0o600)
	}
}

// flipsOf are cases that each flip a bit in the middle of one occurrence of a text in a database.
func (f *damagedStore) flipsOf(t *testing.T, object, text string) (cases []damageCase) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(f.root, f.databases[object]))
	if err != nil {
		t.Fatal(err)
	}
	for from := 0; ; {
		at := bytes.Index(data[from:], []byte(text))
		if at < 0 {
			break
		}
		from += at + len(text)
		middle := from - len(text)/2 - 1
		cases = append(cases, damageCase{object: object, path: f.databases[object], damage: fmt.Sprintf("bit flipped in %s at %d", text, middle), change: flipAt(middle, 0)})
	}
	if len(cases) == 0 {
		t.Fatalf("%s does not have %q", object, text)
	}
	return cases
}

// TestFlippedBits flips bits of texts that lead from images and containers to their layers: the collector would remove layers that
// containers run on.
func TestFlippedBits(t *testing.T) {
	f := newDamagedStore(t)
	f.compact(t)
	var cases []damageCase
	for _, text := range []string{"overlayfs", "gc.ref.snapshot", "namek8s.io/"} {
		cases = append(cases, f.flipsOf(t, "metadata.db", text)[0])
	}
	cases = append(cases, f.flipsOf(t, "snapshots' metadata.db", "parentk8s.io/")...)
	damageTable(t, f, cases)
}
