package verifier

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestFingerprint: it changes with each change of a program, also behind a symbolic link, and not without one.
func TestFingerprint(t *testing.T) {
	dir, programs := t.TempDir(), t.TempDir()
	built := time.Unix(1, 0)
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, built, built); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to string) {
		t.Helper()
		path := filepath.Join(dir, "linked")
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	first, second := filepath.Join(programs, "v1"), filepath.Join(programs, "v2")
	write(first, "accepts")
	write(second, "refuses")
	seen := map[string]string{}
	changes := func(what string) {
		t.Helper()
		now, err := Fingerprint(dir)
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := seen[now]; ok {
			t.Errorf("the fingerprint is the same after %s as after %s", what, before)
		}
		if again, err := Fingerprint(dir); err != nil || again != now {
			t.Errorf("the fingerprint after %s is %s, then %s, %v", what, now, again, err)
		}
		seen[now] = what
	}
	changes("nothing")
	write(filepath.Join(dir, "check"), "accepts")
	changes("a new program")
	write(filepath.Join(dir, "check"), "accepts all")
	changes("a change of a program")
	link(first)
	changes("a new link")
	link(second)
	changes("a link to a program of the same size and time")
	write(second, "refuses all")
	changes("a change behind a link")
	link(filepath.Join(programs, "absent"))
	if _, err := Fingerprint(dir); !errors.Is(err, errs.State) {
		t.Errorf("a link that leads nowhere: %v", err)
	}
}
