package repair

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/dbcheck"
)

// TestLostRecords: a record that a changed bit has taken or changed is found, and what a killed pull or removal leaves is no
// damage.
func TestLostRecords(t *testing.T) {
	const pinned, platform = "io.cri-containerd.pinned", "run.berth.platform"
	document := []byte("a manifest")
	target := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromBytes(document), Size: int64(len(document))}
	id := digest.FromString("config").String()
	for what, c := range map[string]struct {
		// change changes the records after they were copied.
		change  func(db *database.DB) error
		damaged bool
	}{
		"nothing": {func(*database.DB) error { return nil }, false},
		"a new name that is not copied yet": {func(db *database.DB) error {
			_, err := db.Images.Create(database.WithNamespace(t.Context()), images.Image{Name: "new", Target: target})
			return err
		}, false},
		"a name that is gone": {func(db *database.DB) error { return db.Images.Delete(database.WithNamespace(t.Context()), "app") }, true},
		"a name that has moved to another manifest": {func(db *database.DB) error {
			ctx, moved := database.WithNamespace(t.Context()), []byte("another")
			desc := imagespec.Descriptor{MediaType: target.MediaType, Digest: digest.FromBytes(moved), Size: int64(len(moved))}
			_, err := db.Images.Update(ctx, images.Image{Name: "app", Target: desc}, "target")
			return errors.Join(err, content.WriteBlob(ctx, db.Content, "moved", bytes.NewReader(moved), desc))
		}, false},
		"a name of a manifest that is nowhere": {func(db *database.DB) error {
			desc := target
			desc.Digest = digest.FromString("nowhere")
			_, err := db.Images.Update(database.WithNamespace(t.Context()), images.Image{Name: "app", Target: desc}, "target")
			return err
		}, true},
		"another size": {func(db *database.DB) error {
			desc := target
			desc.Size++
			_, err := db.Images.Update(database.WithNamespace(t.Context()), images.Image{Name: "app", Target: desc}, "target")
			return err
		}, true},
		"another type of manifests": {func(db *database.DB) error {
			desc := target
			desc.MediaType = images.MediaTypeDockerSchema2Manifest
			_, err := db.Images.Update(database.WithNamespace(t.Context()), images.Image{Name: "app", Target: desc}, "target")
			return err
		}, false},
		"no pin": {func(db *database.DB) error {
			_, err := db.Images.Update(database.WithNamespace(t.Context()), images.Image{Name: "app", Labels: map[string]string{}}, "labels")
			return err
		}, true},
		"another platform of a name": {func(db *database.DB) error {
			_, err := db.Images.Update(database.WithNamespace(t.Context()), images.Image{Name: "app", Labels: map[string]string{pinned: "pinned", platform: "linux/arm64"}}, "labels")
			return err
		}, true},
		"another platform of an id": {func(db *database.DB) error {
			_, err := db.Images.Update(database.WithNamespace(t.Context()), images.Image{Name: id, Labels: map[string]string{platform: "linux/arm64"}}, "labels")
			return err
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			r := Repairer{Paths: database.Paths{Root: t.TempDir()}, Log: slog.New(slog.DiscardHandler)}
			db := database.New(r.Paths, os.RemoveAll, r.Log)
			ctx := database.WithNamespace(t.Context())
			if err := db.Open(ctx); err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			err := content.WriteBlob(ctx, db.Content, "document", bytes.NewReader(document), target)
			for name, labels := range map[string]map[string]string{"app": {pinned: "pinned"}, id: nil} {
				_, createErr := db.Images.Create(ctx, images.Image{Name: name, Target: target, Labels: labels})
				err = errors.Join(err, createErr)
			}
			if err != nil {
				t.Fatal(err)
			}
			db.SaveNames(ctx)
			if err := c.change(db); err != nil {
				t.Fatal(err)
			}
			if err := r.LostRecords(t.Context(), db); errors.Is(err, dbcheck.ErrDamaged) != c.damaged || !c.damaged && err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}
