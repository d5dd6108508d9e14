//go:build integration

package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestRebuildOnAFullDisk: a start that has no room to rebuild the store fails, and says that nothing in the quarantine may be
// deleted. With some room the next start ends the rebuild, and uses the layers that are there.
func TestRebuildOnAFullDisk(t *testing.T) {
	cfg := testConfig(t)
	fill := onSmallDisk(t, &cfg, 16<<20)
	s := open(t, cfg)
	list, err := s.Import(t.Context(), archiveOf(t, imagetest.Spec{Name: "app:1", Files: []imagetest.File{{Path: "f", Content: []byte("content")}}}), "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	inode := inodeOf(t, s, list[0].ID)
	if err := errors.Join(s.Close(), os.Truncate(s.db.MetadataFile(), 0)); err != nil {
		t.Fatal(err)
	}
	fill(int64(2 * os.Getpagesize())) // to note that a rebuild has begun
	failed, err := Open(t.Context(), cfg)
	if err == nil {
		t.Fatal("the store opens without room for its databases", failed.Close())
	}
	if !errors.Is(errs.OfDisk(err), errs.Exhausted) || !strings.Contains(err.Error(), "delete nothing in "+filepath.Join(cfg.Root, "quarantine")) {
		t.Errorf("%v", err)
	}
	fill(8 << 20)
	s = open(t, cfg)
	if got, err := s.Get(t.Context(), "app:1"); err != nil || !got.Pinned || inodeOf(t, s, got.ID) != inode {
		t.Errorf("with room again: %+v, %v", got, err)
	}
}
