package images

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestSpool: the spool file has no name. All readers read it from the start. The error of a full
// disk names it.
func TestSpool(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	s, err := newSpool()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := s.Write([]byte("images")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if text, err := os.ReadFile(s.path()); err != nil || string(text) != "images" {
			t.Errorf("%q, %v", text, err)
		}
	}
	killed := errors.New("the tool was killed")
	if err := s.explain(killed); !errors.Is(err, killed) || s.explain(nil) != nil {
		t.Errorf("%v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	disk := &spool{file: full, dir: dir}
	if _, err := disk.Write([]byte("images")); err == nil {
		t.Error("a full disk takes more")
	}
	if err := disk.explain(killed); !errors.Is(err, errs.Exhausted) || !strings.Contains(err.Error(), "no space is left in "+dir+"; make TMPDIR") {
		t.Errorf("%v", err)
	}
	t.Setenv("TMPDIR", dir+"/absent")
	if _, err := newSpool(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("%v", err)
	}
	t.Setenv("TMPDIR", "")
	if got := spoolDir(); got != "/var/tmp" {
		t.Errorf("images go to %s", got)
	}
}
