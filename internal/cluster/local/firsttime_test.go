package local

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFirstTime(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", "")
	one, two := filepath.Join(home, "one"), filepath.Join(home, "two")
	for _, file := range []string{one, two} {
		if err := os.WriteFile(file, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		what, host string
		want       bool
	}{
		{"a", one, true},
		{"a", one, false},
		{"b", one, true},
		{"a", two, true},
		{"a", two, false},
		{"a", filepath.Join(home, "none"), true},
		{"a", filepath.Join(home, "none"), false},
	} {
		if got := firstTime(c.what, c.host); got != c.want {
			t.Errorf("%d: %s on %s: %v", i, c.what, c.host, got)
		}
	}
	// Without a writable directory the package cannot record the message.
	t.Setenv("HOME", one)
	for range 2 {
		if !firstTime("a", one) {
			t.Error("it is not told, though nothing is noted")
		}
	}
}
