//go:build integration

package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

const modelType = "application/vnd.example.model"

// model is an artifact with files in directories, an empty one, one that claims to be a layer, and a layer without a name.
var model = imagetest.ArtifactSpec{Type: modelType, Files: []imagetest.ArtifactFile{
	{Title: "model.bin", Content: strings.Repeat("weights", 20_000)},
	{Title: "conf/deep/a.json", Content: `{"a": 1}`, MediaType: "application/json"},
	{Title: "conf/empty"},
	{Title: "as it is", Content: "not a tar archive", MediaType: imagespec.MediaTypeImageLayerGzip},
	{Content: "nameless"},
}}

func buildArtifact(t *testing.T, spec imagetest.ArtifactSpec) *imagetest.Image {
	t.Helper()
	a, err := imagetest.Artifact(spec)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// modelStore is a registry with the model, and a store that has pulled it.
func modelStore(t *testing.T) (s *Images, a *imagetest.Image, ref string, r *imagetest.Registry) {
	t.Helper()
	r = &imagetest.Registry{}
	ref = serve(t, r) + "/models/small:v1"
	a = buildArtifact(t, model)
	r.Push("models/small", "v1", a)
	s = open(t, testConfig(t))
	id, err := s.Pull(t.Context(), ref, image.Auth{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if id != a.Manifest.Digest.String() {
		t.Fatalf("id %s, want that of the manifest %s", id, a.Manifest.Digest)
	}
	return s, a, ref, r
}

// wantModel mounts the model as a volume, compares its files, and releases it.
func wantModel(t *testing.T, s *Images, id string) {
	t.Helper()
	m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "sandbox-model", ImageID: id, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range model.Files {
		if file.Title == "" {
			continue
		}
		path := filepath.Join(m.Path, file.Title)
		data, err := os.ReadFile(path)
		if err != nil || string(data) != file.Content {
			t.Errorf("%s: %.40q, %v", file.Title, data, err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o644 {
			t.Errorf("%s: %v, %v", file.Title, fi.Mode(), err)
		}
		if err := os.WriteFile(path, nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s can be written: %v", file.Title, err)
		}
	}
	if files, _ := filesBelow(t, m.Path); files != 4 {
		t.Errorf("%d files, want those that have a name", files)
	}
	if err := s.Release(t.Context(), "sandbox-model"); err != nil {
		t.Fatal(err)
	}
}

func TestArtifactIsPulledMountedAndRemoved(t *testing.T) {
	ctx := t.Context()
	s, a, ref, r := modelStore(t)
	id := a.Manifest.Digest.String()
	for _, name := range []string{ref, id, id[len("sha256:"):][:12], strings.TrimSuffix(ref, ":v1") + "@" + id} {
		got, err := s.Get(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != id || len(got.Tags) != 1 || got.Tags[0] != ref || len(got.Digests) != 1 || got.Size < 140_000 || got.Pinned {
			t.Errorf("%s is %+v", name, got)
		}
		if got.Artifact == nil || got.Artifact.Type != modelType || len(got.Artifact.Files) != 4 || got.Artifact.Files[1].Name != "conf/deep/a.json" ||
			got.Artifact.Files[1].MediaType != "application/json" || got.Artifact.Files[1].Digest != a.Layers[1].Digest {
			t.Errorf("artifact %+v", got.Artifact)
		}
	}
	if list, err := s.List(ctx); err != nil || len(list) != 1 || list[0].Artifact == nil {
		t.Errorf("list %+v, %v", list, err)
	}
	if layered, err := s.Layers(ctx); err != nil || len(layered) != 1 || len(layered[0].Layers) > 0 {
		t.Errorf("an artifact has no layers to make images from: %+v, %v", layered, err)
	}
	before := len(r.Requests())
	if _, err := s.Pull(ctx, ref, image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if asked := r.Requests()[before:]; len(asked) != 1 {
		t.Errorf("a second pull asked %v", asked)
	}
	wantModel(t, s, id)

	s = reopen(t, s)
	wantModel(t, s, id)
	report, err := s.Check(ctx, false, nil)
	if err != nil || len(report.Damage) > 0 || len(report.Notes) > 0 || report.Layers != 1 || report.Blobs != 7 {
		t.Errorf("report %+v, %v", report, err)
	}
	use, err := s.DiskUse(ctx)
	if err != nil || len(use.Images) != 1 || use.Images[0].Content < 140_000 || use.Images[0].Layers < 140_000 || use.Images[0].Shared != 0 {
		t.Errorf("disk use %+v, %v", use, err)
	}

	// What is mounted stays when the artifact is removed, also over a restart.
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "sandbox-model", ImageID: id, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, ref); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, id); !errors.Is(err, errs.NotFound) {
		t.Errorf("a removed artifact: %v", err)
	}
	s = reopen(t, s)
	if data, err := os.ReadFile(filepath.Join(m.Path, "conf/deep/a.json")); err != nil || string(data) != `{"a": 1}` {
		t.Errorf("the volume of a removed artifact: %q, %v", data, err)
	}
	if err := s.Release(ctx, "sandbox-model"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	assertEmpty(t, s)
}

// TestArtifactsShareTheirConfig: most artifacts have the same config, and one of them goes.
func TestArtifactsShareTheirConfig(t *testing.T) {
	r := &imagetest.Registry{}
	host := serve(t, r)
	s := open(t, testConfig(t))
	for name, file := range map[string]imagetest.ArtifactFile{
		"one": {Title: "f", Content: "1"}, "two": {Title: "f", Content: "2"}, "hostile": {Title: "../f", Content: "3"},
	} {
		r.Push(name, "1", buildArtifact(t, imagetest.ArtifactSpec{Type: modelType, Files: []imagetest.ArtifactFile{file}}))
	}
	for _, name := range []string{"one", "two"} {
		if _, err := s.Pull(t.Context(), host+"/"+name+":1", image.Auth{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Pull(t.Context(), host+"/hostile:1", image.Auth{}, nil); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `layer 0 (sha256:`) {
		t.Errorf("a file outside of the volume: %v", err)
	}
	if err := s.Remove(t.Context(), host+"/one:1"); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	list, err := s.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Tags[0] != host+"/two:1" {
		t.Fatalf("left are %+v, %v", list, err)
	}
	m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "sandbox-two", ImageID: list[0].ID, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(m.Path, "f")); err != nil || string(data) != "2" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestDamagedArtifacts: what is lost of an artifact is copied again, and fetched again if the blob is damaged, too.
func TestDamagedArtifacts(t *testing.T) {
	ctx := t.Context()
	s, a, ref, _ := modelStore(t)
	id := a.Manifest.Digest.String()
	dir := filepath.Join(s.db.LayersDir(), lowerOf(t, s, id)[0])

	// fsck compares the files with the blobs.
	alter(t, filepath.Join(dir, "model.bin"), func(data []byte) []byte { data[5] ^= 1; return data })
	report, err := s.Check(ctx, true, nil)
	if err != nil || len(report.Damage) != 1 || !report.Damage[0].Repaired || !strings.Contains(report.Damage[0].Problem, "model.bin") || report.Damage[0].Images[0] != ref {
		t.Errorf("report %+v, %v", report, err)
	}
	wantModel(t, s, id)

	// And the blobs with their digests.
	alter(t, s.db.BlobPath(a.Layers[0].Digest), func(data []byte) []byte { data[5] ^= 1; return data })
	report, err = s.Check(ctx, true, nil)
	if err != nil || len(report.Damage) != 1 || report.Damage[0].Digest != a.Layers[0].Digest || !report.Damage[0].Repaired {
		t.Errorf("report %+v, %v", report, err)
	}

	// A start copies what is gone.
	if err := os.RemoveAll(filepath.Join(s.db.LayersDir(), lowerOf(t, s, id)[0])); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	wantModel(t, s, id)

	// After a loss of power it copies what may not be on disk.
	leaveUnsynced(t, s, unsynced{Boot: "another", Snapshots: chains(t, s, id)})
	if err := os.Truncate(filepath.Join(s.db.LayersDir(), lowerOf(t, s, id)[0], "model.bin"), 10); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	wantModel(t, s, id)

	// The databases can be made again.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, s.db.MetadataFile(), func([]byte) []byte { return []byte("x") })
	s = open(t, s.cfg)
	if got, err := s.Get(ctx, ref); err != nil || got.ID != id || got.Artifact == nil {
		t.Errorf("after a rebuild: %+v, %v", got, err)
	}
	wantModel(t, s, id)

	// A copy is never made from a blob with other content.
	alter(t, s.db.BlobPath(a.Layers[0].Digest), func(data []byte) []byte { data[5] ^= 1; return data })
	if err := os.RemoveAll(filepath.Join(s.db.LayersDir(), lowerOf(t, s, id)[0])); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, s.cfg)
	if got, err := s.Get(ctx, ref); err == nil {
		wantModel(t, s, got.ID) // it is pulled again in the background
	} else if !errors.Is(err, errs.NotFound) {
		t.Error(err)
	}
}

func TestArtifactInAnArchive(t *testing.T) {
	ctx := t.Context()
	s, a, ref, _ := modelStore(t)
	var archive bytes.Buffer
	if err := s.Export(ctx, []string{ref}, &archive); err != nil {
		t.Fatal(err)
	}
	if text := archive.String(); !strings.Contains(text, `"artifactType":"`) || strings.Contains(text, `"RepoTags"`) || strings.Contains(text, `"architecture"`) {
		t.Error("the archive has the artifact as an image for docker, or with a platform")
	}
	other := open(t, testConfig(t))
	list, err := other.Import(ctx, &archive, "", false, nil)
	if err != nil || len(list) != 1 || list[0].Tags[0] != ref || list[0].Artifact == nil {
		t.Fatalf("%+v, %v", list, err)
	}
	wantModel(t, other, a.Manifest.Digest.String())
	if err := other.Tag(ctx, ref, []string{"model:2"}); err != nil {
		t.Fatal(err)
	}
	if got, err := other.Get(ctx, "model:2"); err != nil || got.ID != list[0].ID || got.Artifact == nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestOneDocumentAsImageAndArtifact: a document that is the config of an image and the manifest of an artifact would
// give both the same id.
func TestOneDocumentAsImageAndArtifact(t *testing.T) {
	r := &imagetest.Registry{}
	host := serve(t, r)
	img := build(t, imagetest.Spec{Layers: []imagetest.Layer{{{Path: "f"}}}})
	file := imagetest.NewBlob("application/octet-stream", []byte("x"))
	empty := imagetest.NewBlob(imagespec.MediaTypeEmptyJSON, []byte("{}"))
	fields := map[string]any{}
	if err := json.Unmarshal(img.Config.Data, &fields); err != nil {
		t.Fatal(err)
	}
	config := fields["config"].(map[string]any)
	for name, value := range map[string]any{"mediaType": empty.MediaType, "digest": empty.Digest, "size": empty.Size} {
		config[name] = value
	}
	fields["schemaVersion"], fields["mediaType"], fields["artifactType"] = 2, imagespec.MediaTypeImageManifest, modelType
	fields["layers"] = []imagespec.Descriptor{file.Descriptor}
	both, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest,
		Config: imagetest.NewBlob(imagespec.MediaTypeImageConfig, both).Descriptor, Layers: []imagespec.Descriptor{img.Layers[0].Descriptor},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Push("image", "1", &imagetest.Image{
		Manifest: imagetest.NewBlob(imagespec.MediaTypeImageManifest, manifest), Config: imagetest.NewBlob(imagespec.MediaTypeImageConfig, both), Layers: img.Layers,
	})
	r.Push("artifact", "1", &imagetest.Image{
		Manifest: imagetest.NewBlob(imagespec.MediaTypeImageManifest, both), Config: empty, Layers: []imagetest.Blob{file},
	})
	s := open(t, testConfig(t))
	id, err := s.Pull(t.Context(), host+"/image:1", image.Auth{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.Pull(t.Context(), host+"/artifact:1", image.Auth{}, nil); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "have this id") {
		t.Errorf("the artifact with the id of an image: %v", err)
	}
	if got, err := s.Get(t.Context(), id); err != nil || got.Artifact != nil || got.Tags[0] != host+"/image:1" {
		t.Errorf("the image is %+v, %v", got, err)
	}
}

// TestPolicyOfArtifacts: the policy holds for artifacts as for images.
func TestPolicyOfArtifacts(t *testing.T) {
	g := newGuarded(t)
	a := buildArtifact(t, model)
	g.registry.Push("team/app", "model", a)
	g.registry.Push("other/app", "model", a)
	_, err := g.pull("/other/app:model")
	refused(t, err, "scope default", "reject")
	_, err = g.pull("/team/app:model")
	refused(t, err, "no signature was found")
	if sent := g.registry.Sent(a.Layers[0].Digest); sent > 0 {
		t.Errorf("%d bytes of a file were fetched", sent)
	}
	g.sign(g.signer, a.Manifest.Digest)
	id, err := g.pull("/team/app:model")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.store.Admit(t.Context(), "", id, g.host+"/team/app:model"); err != nil {
		t.Error(err)
	}
	g.write(t, `{"default": [{"type":"reject"}]}`)
	refused(t, g.store.Admit(t.Context(), "", id, g.host+"/team/app:model"), "reject")
}

// TestReferrersAreShown: explain lists what refers to an image, if it may ask.
func TestReferrersAreShown(t *testing.T) {
	g := newGuarded(t)
	of := g.img.Manifest.Digest
	for want := range 2 {
		if want > 0 {
			g.registry.PushBundle("team/app", of, g.signer.Bundle("", of, "https://sigstore.dev/cosign/sign/v1"))
		}
		e, err := g.store.Explain(t.Context(), image.PullTarget{}, g.host+"/team/app:v1", image.Auth{}, true)
		if err != nil {
			t.Fatal(err)
		}
		r := e.Referrers
		if r == nil || r.Of != of || r.Fault != "" || r.LeftOut != 0 || len(r.List) != want {
			t.Fatalf("referrers %+v, want %d", r, want)
		}
		if want > 0 && (r.List[0].ArtifactType != imagetest.BundleType || r.List[0].Size == 0) {
			t.Errorf("referrer %+v", r.List[0])
		}
	}
	asked := len(g.registry.Requests())
	if e, err := g.store.Explain(t.Context(), image.PullTarget{}, g.host+"/team/app:v1", image.Auth{}, false); err != nil || e.Referrers != nil || len(g.registry.Requests()) != asked {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err := g.store.Explain(t.Context(), image.PullTarget{}, g.host+"/team/none:v1", image.Auth{}, true); err != nil || e.Referrers != nil {
		t.Errorf("an image that no endpoint knows: %+v, %v", e.Referrers, err)
	}
}
