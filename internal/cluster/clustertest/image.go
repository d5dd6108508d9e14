package clustertest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/opencontainers/go-digest"
)

// BaseLayer and OwnLayer are the contents of the layers of app:1.
const BaseLayer, OwnLayer = "layer of the base", "layer of its own"

// imageConfig is the configuration of an image of both layers; its digest is the ID.
func imageConfig() string {
	return fmt.Sprintf(`{"architecture":%q,"os":"linux","rootfs":{"type":"layers","diff_ids":[%q,%q]}}`, runtime.GOARCH, digest.FromString(BaseLayer), digest.FromString(OwnLayer))
}

// ImageID is the ID of app:1.
func ImageID() string { return digest.FromString(imageConfig()).String() }

// SavedImage is app:1 as engines save it.
func SavedImage(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, file := range [][2]string{
		{"1/layer.tar", BaseLayer},
		{"2/layer.tar", OwnLayer},
		{"c.json", imageConfig()},
		{"manifest.json", `[{"Config":"c.json","RepoTags":["app:1"],"Layers":["1/layer.tar","2/layer.tar"]}]`},
	} {
		if err := w.WriteHeader(&tar.Header{Name: file[0], Size: int64(len(file[1])), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, file[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
