package machine

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/provision"
)

func machineAt(t *testing.T, root string) *Machine {
	t.Helper()
	m, err := New(root, Options{Assets: func(provision.Files) provision.Assets { return nil }, DigestFile: "/digests"})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDigestsAreKept: the next run recognizes a large file by its timestamp, and a changed file by
// its content.
func TestDigestsAreKept(t *testing.T) {
	root := t.TempDir()
	binary := filepath.Join(root, "binary")
	write := func(b byte) {
		t.Helper()
		if err := os.WriteFile(binary, bytes.Repeat([]byte{b}, keptSize), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	digestOf := func(m *Machine) string {
		t.Helper()
		sum, err := m.Files().Digest("/binary")
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	write('a')
	m := machineAt(t, root)
	first := digestOf(m)
	time.Sleep(settled) // until the timestamp is old enough to be reliable
	if err := m.KeepDigests(); err != nil {
		t.Fatal(err)
	}
	next := machineAt(t, root)
	if got := digestOf(next); got != first || len(next.files.digests.kept) != 1 {
		t.Errorf("%s, and %d kept; want %s and 1", got, len(next.files.digests.kept), first)
	}
	write('b')
	if got := digestOf(machineAt(t, root)); got == first {
		t.Error("a file that changed has the digest of before")
	}
}
