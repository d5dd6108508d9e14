//go:build integration

package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/image/database"
)

// TestAStartKeepsTheLayersOfContainers: a start that removes something collects what nothing uses. Containers run on the layers of
// a removed image meanwhile.
func TestAStartKeepsTheLayersOfContainers(t *testing.T) {
	for name, before := range map[string]func(s *Images, files string) error{
		"an image that cannot be repaired": func(s *Images, files string) error {
			ctx := database.WithNamespace(t.Context())
			record, err := s.db.Images.Get(ctx, "docker.io/library/plain:1")
			if err != nil {
				return err
			}
			of, err := s.db.ReadRecord(ctx, record, s.db.Present)
			if err != nil {
				return err
			}
			return errors.Join(os.RemoveAll(filepath.Dir(files)), os.Remove(s.db.BlobPath(of.Layers[0].Digest)))
		},
		"a layer of copies": func(_ *Images, files string) error {
			label, err := database.ReadLayerLabel(filepath.Dir(files))
			label.WhiteoutFiles = true
			return errors.Join(err, database.WriteLayerLabel(files, label))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, plain := running(t)
			files, _, err := s.db.LayerFiles(database.WithNamespace(t.Context()), chains(t, s, plain.ID)[0])
			if err == nil {
				err = before(s, files)
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s = reopen(t, s)
				runs(t, s)
			}
		})
	}
}
