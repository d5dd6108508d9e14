//go:build integration

package local

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestLayerInThePlaceOfADocument: a registry names a layer that the node has, with a small size, as a document or as a
// signature. The node refuses it, reads nothing of it into memory, and keeps the layer.
func TestLayerInThePlaceOfADocument(t *testing.T) {
	const large = 32 << 20
	g := newGuarded(t)
	big := build(t, imagetest.Spec{Layers: []imagetest.Layer{{{Path: "model", Content: make([]byte, large)}}}})
	small := build(t, layersOf(1, "gzip"))
	accepted := g.cfg.PullRules
	accepted.PolicyFile = ""
	g.store.SetPullRules(accepted)
	for name, img := range map[string]*imagetest.Image{"big": big, "small": small} {
		g.registry.Push("team/"+name, "v1", img)
		if _, err := g.pull("/team/" + name + ":v1"); err != nil {
			t.Fatal(err)
		}
	}
	document := func(mediaType string, value any) imagetest.Blob {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return imagetest.NewBlob(mediaType, data)
	}
	lie := func(layer imagetest.Blob, mediaType string) imagespec.Descriptor {
		host := platforms.DefaultSpec()
		return imagespec.Descriptor{MediaType: mediaType, Digest: layer.Digest, Size: 123, Platform: &host}
	}
	for name, layer := range map[string]imagetest.Blob{"big": big.Layers[0], "small": small.Layers[0]} {
		g.registry.PushManifest("evil/config", name, document(imagespec.MediaTypeImageManifest, imagespec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest,
			Config: lie(layer, imagespec.MediaTypeImageConfig), Layers: []imagespec.Descriptor{small.Layers[0].Descriptor},
		}))
		g.registry.PushManifest("evil/index", name, document(imagespec.MediaTypeImageIndex, imagespec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex,
			Manifests: []imagespec.Descriptor{lie(layer, imagespec.MediaTypeImageManifest)},
		}))
		for _, repository := range []string{"config", "index"} {
			before := allocated()
			_, err := g.pull("/evil/" + repository + ":" + name)
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "its descriptor says 123") {
				t.Errorf("a layer as %s: %v", repository, err)
			}
			if more := allocated() - before; more > large/2 {
				t.Errorf("a layer as %s: the pull allocated %d bytes", repository, more)
			}
		}
	}

	g.store.SetPullRules(g.cfg.PullRules)
	g.registry.PushClaim("team/app", g.img.Manifest.Digest, imagetest.Blob{Descriptor: lie(big.Layers[0], imagetest.ClaimType)}, []byte("x"), nil)
	g.registry.PushBlob(big.Layers[0]) // PushClaim has replaced it
	before := allocated()
	_, err := g.pull("/team/app:v1")
	refused(t, err, "its descriptor says 123")
	if more := allocated() - before; more > large/2 {
		t.Errorf("a layer as a signature: the pull allocated %d bytes", more)
	}
	if report, err := g.store.Check(t.Context(), false, nil); err != nil || len(report.Damage) > 0 {
		t.Errorf("after it: %+v, %v", report, err)
	}
	if _, err := g.store.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: big.ID()}); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// allocated is how many bytes the process has allocated since its start.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}
