//go:build integration

package local

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// layered is an image with a shared base and a layer of its own.
func layered(name, own string) imagetest.Spec {
	return imagetest.Spec{Name: name, Layers: []imagetest.Layer{
		{{Path: "base", Content: bytes.Repeat([]byte("base"), 1000)}},
		{{Path: "own", Content: []byte(own)}},
	}}
}

// TestImportOfWhatIsMissing: an OCI layout may omit the layers that Layers reports.
func TestImportOfWhatIsMissing(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	importOf := func(specs ...imagetest.Spec) []image.Image {
		t.Helper()
		var archive bytes.Buffer
		if err := imagetest.OCIArchive(&archive, specs...); err != nil {
			t.Fatal(err)
		}
		list, err := s.Import(ctx, &archive, "", false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	first := importOf(layered("app:1", "one"))[0]
	all, err := s.Layers(ctx)
	if err != nil || len(all) != 1 || all[0].ID != first.ID || !slices.Equal(all[0].Tags, first.Tags) || len(all[0].Layers) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	base := all[0].Layers[0]
	if base.Digest != base.DiffID || base.Size < 4000 {
		t.Errorf("the base is %+v", base)
	}

	var whole bytes.Buffer
	if err := imagetest.OCIArchive(&whole, layered("app:2", "two")); err != nil {
		t.Fatal(err)
	}
	reduced := rewrite(t, whole.Bytes(), func(h *tar.Header, data []byte) (*tar.Header, []byte) {
		if strings.HasSuffix(h.Name, base.Digest.Encoded()) {
			return nil, nil
		}
		return h, data
	})
	if len(reduced) >= whole.Len()-4000 {
		t.Fatalf("nothing was left out of %d bytes", whole.Len())
	}
	second, err := s.Import(ctx, bytes.NewReader(reduced), "", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The shared layers stay when the other image is removed.
	if err := s.Remove(ctx, first.ID); err != nil {
		t.Fatal(err)
	}
	if all, err = s.Layers(ctx); err != nil || len(all) != 1 || all[0].ID != second[0].ID || len(all[0].Layers) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := s.Remove(ctx, second[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(ctx, bytes.NewReader(reduced), "", false, nil); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("without the base: %v", err)
	}
}

func TestTag(t *testing.T) {
	ctx := context.Background()
	s := open(t, testConfig(t))
	var archive bytes.Buffer
	if err := imagetest.Archive(&archive, layered("app:1", "one"), layered("other:1", "two")); err != nil {
		t.Fatal(err)
	}
	list, err := s.Import(ctx, &archive, "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(ctx, list[0].ID, []string{"new:1", "other:1"}); err != nil {
		t.Fatal(err)
	}
	img, err := s.Get(ctx, "new:1")
	if err != nil || img.ID != list[0].ID || !img.Pinned {
		t.Fatalf("%+v, %v", img, err)
	}
	want := []string{"docker.io/library/app:1", "docker.io/library/new:1", "docker.io/library/other:1"}
	if !slices.Equal(img.Tags, want) {
		t.Errorf("tags %q, want %q", img.Tags, want)
	}
	if loser, err := s.Get(ctx, list[1].ID); err != nil || len(loser.Tags) != 0 {
		t.Errorf("the image that lost its name: %+v, %v", loser, err)
	}
	for ref, names := range map[string][]string{"absent:1": {"x:1"}, "app:1": {"x@" + list[0].ID}, "new:1": {"UPPER"}} {
		if err := s.Tag(ctx, ref, names); err == nil || !errors.Is(err, errs.NotFound) && !errors.Is(err, errs.Invalid) {
			t.Errorf("%s as %q: %v", ref, names, err)
		}
	}
}
