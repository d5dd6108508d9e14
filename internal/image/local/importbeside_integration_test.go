//go:build integration

package local

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestImportOfALayerOfAPull: an archive has a layer that a pull, which still fetches another layer, has fetched. The import has
// its own record of the layer before it ends, so it survives a loss of power, and the end of the pull.
func TestImportOfALayerOfAPull(t *testing.T) {
	base := imagetest.Layer{{Path: "base", Content: []byte(strings.Repeat("of both images. ", 1000))}}
	slow := imagetest.Layer{{Path: "large", Content: []byte(strings.Repeat("of the pull alone. ", largeLayer/19+1))}}
	img := build(t, imagetest.Spec{Layers: []imagetest.Layer{base, slow}})
	reached := make(chan struct{})
	r := &imagetest.Registry{Intercept: stopAt(img.Layers[1], reached)}
	r.Push("app", "1", img)
	host := serve(t, r)
	s := open(t, testConfig(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := s.Pull(ctx, host+"/app:1", image.Auth{}, nil)
		ended <- err
	}()
	<-reached
	shared := img.Layers[0].Digest
	awaitPull(t, ended, "the shared layer is there", func() bool {
		_, err := os.Stat(s.db.BlobPath(shared))
		return err == nil
	})
	if _, err := s.db.Content.Info(database.WithNamespace(ctx), shared); err == nil {
		t.Fatal("the layer has a record before the end of the pull: the test tests nothing")
	}
	var archive bytes.Buffer
	if err := imagetest.OCIArchive(&archive, imagetest.Spec{Name: "base:1", Layers: []imagetest.Layer{base}}); err != nil {
		t.Fatal(err)
	}
	list, err := s.Import(t.Context(), &archive, "", false, nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	info, err := s.db.Content.Info(database.WithNamespace(t.Context()), shared)
	if err != nil || info.Size != img.Layers[0].Size {
		t.Errorf("the layer of an imported image: %+v, %v", info, err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the pull has ended well")
	}
	data, err := content.ReadBlob(database.WithNamespace(t.Context()), s.db.Content, img.Layers[0].Descriptor)
	if err != nil || len(data) != len(img.Layers[0].Data) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}
