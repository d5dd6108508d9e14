package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFrozenWithTheOneAbove: on cgroup v2 only the state has that a cgroup is paused because one above it is.
func TestFrozenWithTheOneAbove(t *testing.T) {
	for name, c := range map[string]struct {
		freeze, events string
		want           bool
	}{
		"runs":                      {"0\n", "populated 1\nfrozen 0\n", false},
		"paused":                    {"1\n", "populated 1\nfrozen 1\n", true},
		"about to be paused":        {"1\n", "populated 1\nfrozen 0\n", true},
		"paused with the one above": {"0\n", "populated 1\nfrozen 1\n", true},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"cgroup.freeze": c.freeze, "cgroup.events": c.events} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := (Paths{"": dir}).Frozen(); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := (Paths{"": filepath.Join(t.TempDir(), "absent")}).Frozen(); got || err != nil {
		t.Errorf("a cgroup that is gone: %v, %v", got, err)
	}
}
