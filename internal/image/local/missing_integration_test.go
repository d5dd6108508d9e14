//go:build integration

package local

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestMissingDocumentIsFetchedAgain: a request for an image whose manifest or config is missing on disk says that it is
// damaged, not that the node does not have the image. The document comes back in the background.
func TestMissingDocumentIsFetchedAgain(t *testing.T) {
	a := importArchived(t, imagetest.OCIArchive, true)
	_, manifest, _ := strings.Cut(a.image.Digests[0], "@")
	for what, blob := range map[string]digest.Digest{"config": digest.Digest(a.image.ID), "manifest": digest.Digest(manifest)} {
		for how, damage := range map[string]func(path string) error{
			"missing": os.Remove,
			"empty":   func(path string) error { return os.Truncate(path, 0) },
		} {
			if err := damage(a.db.BlobPath(blob)); err != nil {
				t.Fatal(err)
			}
			_, err := a.Details(t.Context(), "app:1")
			if err == nil || errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "blob "+blob.String()+" is damaged on disk: ") || !strings.Contains(err.Error(), "berth fetches damaged content again in the background") {
				t.Fatalf("%s, %s: %v", what, how, err)
			}
			a.jobs.until(t, "fetch blob again: ok")
			if _, err := a.Details(t.Context(), "app:1"); err != nil {
				t.Errorf("%s, %s, after it was fetched again: %v", what, how, err)
			}
		}
	}
	a.whole(t)
}
