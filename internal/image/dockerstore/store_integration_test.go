//go:build integration

package dockerstore_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/dockerstore"
)

// TestImages: an image has its names, its id and a prefix of it, travels as an archive, and is
// gone when a removal returns, however many there are at the same time.
func TestImages(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	loaded := dockertest.LoadImage(t, d)
	client, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	store, err := dockerstore.New(dockerstore.Options{Client: client, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Tag(t.Context(), loaded.Name, []string{"berth.test/second:2"}); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{loaded.Name, "berth.test/second:2", loaded.ID, loaded.ID[:len("sha256:")+12]} {
		got, err := store.Get(t.Context(), ref)
		if err != nil || got.ID != loaded.ID || len(got.Tags) != 2 || got.Size == 0 || len(got.Config.Env) == 0 {
			t.Errorf("Get(%s) = %+v, %v", ref, got, err)
		}
	}
	var archive bytes.Buffer
	if err := store.Export(t.Context(), []string{loaded.Name}, &archive); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := store.Remove(t.Context(), loaded.ID); err != nil {
				t.Errorf("Remove: %v", err)
			}
			if _, err := store.Get(t.Context(), loaded.ID); !errors.Is(err, errs.NotFound) {
				t.Errorf("after Remove: %v, want NotFound", err)
			}
		})
	}
	wg.Wait()
	if err := store.Export(t.Context(), []string{loaded.Name}, &archive); !errors.Is(err, errs.NotFound) {
		t.Errorf("Export of an absent image: %v", err)
	}
	imported, err := store.Import(t.Context(), &archive, "", true, nil)
	if err != nil || len(imported) != 1 || !imported[0].Pinned {
		t.Fatalf("Import = %+v, %v", imported, err)
	}
	all, err := store.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != imported[0].ID {
		t.Errorf("List = %+v, %v", all, err)
	}
	used, err := store.Usage(t.Context())
	if err != nil || len(used.Images) == 0 || len(used.Containers) == 0 || used.Images[0].Mountpoint == "" {
		t.Errorf("Usage = %+v, %v", used, err)
	}
}
