//go:build integration

package local

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
)

// TestExportOfDamagedContent: whatever is damaged, and however, the error names the blob and says what to do, and the blob is
// fetched again in the background.
func TestExportOfDamagedContent(t *testing.T) {
	a := audit(t)
	jobs := make(seenJobs, 1000)
	cfg := a.cfg
	cfg.Jobs = jobs
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	damages := map[string]func(path string) error{
		"missing":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 20) },
		"flipped": func(path string) error {
			alter(t, path, flip)
			return nil
		},
	}
	for what, blob := range map[string]digest.Digest{"layer": a.first.Layers[1].Digest, "config": a.first.Config.Digest, "manifest": a.first.Manifest.Digest} {
		for how, damage := range damages {
			if err := damage(s.db.BlobPath(blob)); err != nil {
				t.Fatal(err)
			}
			err := s.Export(t.Context(), []string{a.firstID}, io.Discard)
			var damaged *database.DamagedError
			if !errors.As(err, &damaged) || damaged.Blob != blob || !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "run berth image fsck --repair, or pull or import its image again") {
				t.Fatalf("%s, %s: %v", what, how, err)
			}
			jobs.until(t, "fetch blob again: ok")
			if err := s.Export(t.Context(), []string{a.firstID}, io.Discard); err != nil {
				t.Errorf("%s, %s, after it was fetched again: %v", what, how, err)
			}
		}
	}
	// A start drops the blob of a layer that is missing.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	a.registry.Intercept = down
	blob := a.first.Layers[1].Digest
	if err := os.Remove(s.db.BlobPath(blob)); err != nil {
		t.Fatal(err)
	}
	s = open(t, cfg)
	if err := s.Export(t.Context(), []string{a.firstID}, io.Discard); err == nil || !strings.Contains(err.Error(), blob.String()) || !strings.Contains(err.Error(), "run berth image fsck --repair") {
		t.Errorf("after a start: %v", err)
	}
}
