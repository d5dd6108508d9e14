package snapshotters

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// prefixes returns what the names of a store's snapshots begin with, by the names of the snapshotters, which share a socket.
func prefixes(t *testing.T, root string) map[string]string {
	t.Helper()
	set, err := New(Config{Addresses: map[string]string{"a": "/run/s.sock", "b": "/run/s.sock"}, Root: root, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	all := map[string]string{}
	for name, one := range set.byName {
		all[name] = one.prefix
	}
	return all
}

// TestStoresShareASnapshotter: a store finds its own snapshots again, also after its directory was moved, and never those of
// another store, or of another name of the snapshotter.
func TestStoresShareASnapshotter(t *testing.T) {
	root := filepath.Join(t.TempDir(), "images")
	makeRoot := func() {
		if err := os.MkdirAll(root, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	makeRoot()
	first := prefixes(t, root)
	if first["a"] == first["b"] {
		t.Errorf("two names have the prefix %s", first["a"])
	}
	moved := root + "-moved"
	if err := os.Rename(root, moved); err != nil {
		t.Fatal(err)
	}
	makeRoot()
	second := prefixes(t, root)
	if again := prefixes(t, moved); again["a"] != first["a"] || second["a"] == first["a"] {
		t.Errorf("the prefix was %s, is %s, and that of another store in the same directory is %s", first["a"], again["a"], second["a"])
	}
	if err := os.WriteFile(filepath.Join(root, FileName), []byte("../x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := prefixes(t, root)["a"]; got == second["a"] || len(got) != len(second["a"]) {
		t.Errorf("with a damaged identifier: %s", got)
	}
}
