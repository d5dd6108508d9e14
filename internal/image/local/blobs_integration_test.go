//go:build integration

package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// A power loss may truncate a blob that several images share, although the database has an entry
// for it. A pull fetches the blob again, and an import reads it again.
func TestEmptyBlobsAreFetchedAgain(t *testing.T) {
	ctx := context.Background()
	r := &imagetest.Registry{}
	host := serve(t, r)
	img := build(t, layersOf(2, "gzip"))
	r.Push("app", "1", img)
	r.Push("other", "1", img)
	s := open(t, testConfig(t))
	if _, err := s.Pull(ctx, host+"/app:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	id := img.ID()
	m := unsynced{Boot: "another boot", Snapshots: chains(t, s, id)}
	for _, unpackedToo := range []bool{false, true} {
		t.Run(fmt.Sprintf("layers too %v", unpackedToo), func(t *testing.T) {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for i, layer := range img.Layers {
				path := s.db.BlobPath(layer.Digest)
				if err := os.Chmod(path, 0o600); err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					if err := os.Truncate(path, 0); err != nil {
						t.Fatal(err)
					}
				} else if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if unpackedToo {
				files, err := filepath.Glob(filepath.Join(s.db.LayersDir(), "*/fs/f*"))
				if err != nil || len(files) != 2 {
					t.Fatalf("files of layers: %v, %v", files, err)
				}
				for _, file := range files {
					if err := os.Truncate(file, 0); err != nil {
						t.Fatal(err)
					}
				}
				leaveUnsynced(t, s, m)
			}
			s = open(t, s.cfg)
			if _, err := s.Get(ctx, host+"/app:1"); (err == nil) == unpackedToo {
				t.Errorf("the image after the loss: %v", err)
			}
			if got, err := s.Pull(ctx, host+"/other:1", image.Auth{}, nil); err != nil || got != id {
				t.Fatalf("pull after the loss: %s, %v", got, err)
			}
			for _, layer := range img.Layers {
				if fi, err := os.Stat(s.db.BlobPath(layer.Digest)); err != nil || fi.Size() != int64(len(layer.Data)) {
					t.Errorf("blob %s: %v, %v", layer.Digest, fi, err)
				}
			}
			mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "probe", ImageID: id})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"f0", "f1"} {
				if fi, err := os.Stat(filepath.Join(mounted.Path, name)); err != nil || fi.Size() != 50_000 {
					t.Errorf("%s: %v, %v", name, fi, err)
				}
			}
			if err := s.Release(ctx, "probe"); err != nil {
				t.Fatal(err)
			}
		})
	}
}
