//go:build integration

package local

import (
	"maps"
	"testing"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestAPullDoesNotAnnotateTheImageOfAnotherName: anybody can make a manifest with the config of an image of others. Its
// annotations, by which an image has a checkpoint in it, are those of its own name.
func TestAPullDoesNotAnnotateTheImageOfAnotherName(t *testing.T) {
	r := &imagetest.Registry{}
	host := serve(t, r)
	spec := imagetest.Spec{Layers: []imagetest.Layer{{{Path: "f"}}}, Annotations: map[string]string{"both": "same", "differs": "1"}}
	img := build(t, spec)
	added := map[string]string{"both": "same", "differs": "2", "io.podman.annotations.checkpoint.name": "main"}
	spec.Annotations = added
	other := build(t, spec)
	if img.ID() != other.ID() || img.Manifest.Digest == other.Manifest.Digest {
		t.Fatal("want two manifests of one image")
	}
	r.Push("team/app", "1", img)
	r.Push("other/app", "1", other)
	cfg := testConfig(t)
	s := open(t, cfg)
	pull := func(ref string) {
		t.Helper()
		if _, err := s.Pull(t.Context(), host+ref, image.Auth{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	common := map[string]string{"both": "same"}
	check := func(when, ref string, want map[string]string) {
		t.Helper()
		got, err := s.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got.Annotations, want) {
			t.Errorf("%s: %s has %v, want %v", when, ref, got.Annotations, want)
		}
	}
	own := map[string]string{"both": "same", "differs": "1"}
	pull("/team/app:1")
	check("alone", img.ID(), own)
	pull("/other/app:1")
	for _, when := range []string{"pulled", "after a start"} {
		check(when, img.ID(), common)
		check(when, host+"/team/app:1", own)
		check(when, host+"/team/app@"+img.Manifest.Digest.String(), own)
		check(when, host+"/other/app:1", added)
		if list, err := s.List(t.Context()); err != nil || len(list) != 1 || !maps.Equal(list[0].Annotations, common) {
			t.Errorf("%s: images %+v, %v", when, list, err)
		}
		s.Close()
		s = open(t, cfg)
	}
	// The tag moves. The digest keeps its manifest.
	r.Push("team/app", "1", other)
	pull("/team/app:1")
	check("moved", host+"/team/app:1", added)
	check("moved", host+"/team/app@"+img.Manifest.Digest.String(), own)
	check("moved", img.ID(), common)
}
