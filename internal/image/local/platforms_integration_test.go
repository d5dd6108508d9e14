//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

const wasm = "wasi/wasm"

// otherArch is a platform of another processor than the node's.
func otherArch() string {
	if runtime.GOARCH == "arm64" {
		return "linux/amd64"
	}
	return "linux/arm64"
}

// platformSite is a store and a registry that has team/app:1 for the node, for another processor and for wasm.
type platformSite struct {
	*Images
	registry *imagetest.Registry
	name     string
	index    imagetest.Blob
	// images are by their platforms, "" for the node's.
	images map[string]*imagetest.Image
}

func newPlatformSite(t *testing.T, change func(*Config)) *platformSite {
	t.Helper()
	p := &platformSite{registry: &imagetest.Registry{}, images: map[string]*imagetest.Image{}}
	p.name = serve(t, p.registry) + "/team/app:1"
	pushed := map[string]*imagetest.Image{}
	for _, platform := range []string{"", otherArch(), wasm} {
		p.images[platform] = buildFor(t, platform, "1")
		pushed[or(platform, "linux/"+runtime.GOARCH)] = p.images[platform]
	}
	p.index = p.registry.PushIndex("team/app", "1", pushed)
	cfg := testConfig(t)
	if change != nil {
		change(&cfg)
	}
	p.Images = open(t, cfg)
	return p
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// buildFor makes an image of one file, whose content is its platform.
func buildFor(t *testing.T, platform, version string) *imagetest.Image {
	t.Helper()
	spec := imagetest.Spec{Compression: "gzip", Cmd: []string{"/app"}, Env: []string{"V=" + version}}
	spec.Layers = []imagetest.Layer{{{Path: "app", Content: []byte(platform + strings.Repeat(version, 20_000))}}}
	if platform != "" {
		spec.OS, spec.Architecture, _ = strings.Cut(platform, "/")
	}
	return build(t, spec)
}

func (p *platformSite) pull(t *testing.T, platform, ref string) string {
	t.Helper()
	id, err := p.PullFor(t.Context(), image.PullTarget{Platform: platform}, ref, image.Auth{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// wants has the name and the ids of the images of these platforms, and of no others.
func (p *platformSite) wants(t *testing.T, has ...string) {
	t.Helper()
	ids, byDigest := []string{}, strings.TrimSuffix(p.name, ":1")+"@"+p.index.Digest.String()
	for platform, want := range p.images {
		if !slices.Contains(has, platform) {
			if img, err := p.GetFor(t.Context(), platform, p.name); !errors.Is(err, errs.NotFound) {
				t.Errorf("%s for %q: %+v, %v", p.name, platform, img, err)
			}
			continue
		}
		ids = append(ids, want.ID())
		for _, ref := range []string{p.name, byDigest, want.ID(), want.ID()[7:19]} {
			img, err := p.GetFor(t.Context(), platform, ref)
			if err != nil || img.ID != want.ID() {
				t.Errorf("%s for %q: %+v, %v; want %s", ref, platform, img, err, want.ID())
				continue
			}
			if !slices.Equal(img.Tags, []string{p.name}) || !slices.Contains(img.Digests, byDigest) || !img.IsFor(platform) {
				t.Errorf("%s for %q: %+v", ref, platform, img)
			}
		}
		if img, err := p.Get(t.Context(), want.ID()); err != nil || img.ID != want.ID() {
			t.Errorf("by id: %+v, %v", img, err)
		}
	}
	list, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	listed := []string{}
	for i := range list {
		listed = append(listed, list[i].ID)
	}
	slices.Sort(ids)
	if !slices.Equal(listed, ids) {
		t.Errorf("listed %v, want %v", listed, ids)
	}
}

// content returns the file of the container of an image.
func (p *platformSite) content(t *testing.T, id string) string {
	t.Helper()
	made, err := p.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: id})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(made.Path, "app"))
	if err := errors.Join(err, p.Release(t.Context(), "c")); err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(data), "1")
}

// TestOneNameForSeveralPlatforms: a name has an image for each platform, also after a restart and a rebuild of the
// database, and each of them goes by itself.
func TestOneNameForSeveralPlatforms(t *testing.T) {
	p := newPlatformSite(t, nil)
	// The node's is not there yet.
	if id := p.pull(t, wasm, p.name); id != p.images[wasm].ID() {
		t.Errorf("pulled %s", id)
	}
	p.wants(t, wasm)
	var other *image.OtherPlatformError
	if _, err := p.GetFor(t.Context(), "", p.name); !errors.As(err, &other) || !slices.Equal(other.Has, []string{wasm}) {
		t.Errorf("for the node: %v", err)
	}
	if _, err := p.GetFor(t.Context(), otherArch(), p.images[wasm].ID()); !errors.As(err, &other) || other.Wants != otherArch() {
		t.Errorf("by the id of another platform: %v", err)
	}
	p.pull(t, "", p.name)
	p.pull(t, otherArch(), p.name)
	p.wants(t, "", wasm, otherArch())
	for platform, img := range p.images {
		if got := p.content(t, img.ID()); got != platform {
			t.Errorf("the container of %q has %q", platform, got)
		}
	}
	reopen := func() {
		t.Helper()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p.Images = open(t, p.cfg)
	}
	reopen()
	p.wants(t, "", wasm, otherArch())
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.cfg.paths().MetadataFile(), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Images = open(t, p.cfg)
	p.wants(t, "", wasm, otherArch())
	// A name without a platform is the node's.
	if err := p.Remove(t.Context(), p.name); err != nil {
		t.Fatal(err)
	}
	p.wants(t, wasm, otherArch())
	p.lacks(t, "")
	for _, platform := range []string{wasm, otherArch()} {
		if got := p.content(t, p.images[platform].ID()); got != platform {
			t.Errorf("the container of %q has %q", platform, got)
		}
	}
	if err := p.RemoveFor(t.Context(), wasm, p.images[otherArch()].ID()); err != nil { // it is none of wasm
		t.Fatal(err)
	}
	if err := p.RemoveFor(t.Context(), wasm, p.name); err != nil {
		t.Fatal(err)
	}
	p.wants(t, otherArch())
	p.lacks(t, "", wasm)
	reopen()
	p.wants(t, otherArch())
	if err := p.Remove(t.Context(), p.images[otherArch()].ID()); err != nil {
		t.Fatal(err)
	}
	p.wants(t)
	p.lacks(t, "", wasm, otherArch())
	if _, err := os.Stat(p.db.BlobPath(p.index.Digest)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the index is still there: %v", err)
	}
}

// lacks checks that the collector has removed what images of these platforms had.
func (p *platformSite) lacks(t *testing.T, gone ...string) {
	t.Helper()
	for _, platform := range gone {
		img := p.images[platform]
		for _, blob := range append([]imagetest.Blob{img.Manifest, img.Config}, img.Layers...) {
			if _, err := os.Stat(p.db.BlobPath(blob.Digest)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("blob %s of the image for %q is still there: %v", blob.Digest, platform, err)
			}
		}
	}
}

// TestTagsMoveForOnePlatform: what a pull for a platform moves leaves the image of the same name for the node.
func TestTagsMoveForOnePlatform(t *testing.T) {
	p := newPlatformSite(t, nil)
	for platform := range p.images {
		p.pull(t, platform, p.name)
	}
	if err := p.Tag(t.Context(), p.images[wasm].ID(), []string{"own:1"}); err != nil {
		t.Fatal(err)
	}
	if img, err := p.GetFor(t.Context(), wasm, "own:1"); err != nil || img.ID != p.images[wasm].ID() {
		t.Errorf("tagged: %+v, %v", img, err)
	}
	if _, err := p.Get(t.Context(), "own:1"); !errors.Is(err, errs.NotFound) {
		t.Errorf("the name for the node: %v", err)
	}
	fresh := buildFor(t, wasm, "2")
	p.registry.PushIndex("team/app", "1", map[string]*imagetest.Image{wasm: fresh})
	if id := p.pull(t, wasm, p.name); id != fresh.ID() {
		t.Errorf("pulled %s", id)
	}
	for platform, want := range map[string]string{"": p.images[""].ID(), otherArch(): p.images[otherArch()].ID(), wasm: fresh.ID()} {
		if img, err := p.GetFor(t.Context(), platform, p.name); err != nil || img.ID != want {
			t.Errorf("%q: %+v, %v", platform, img, err)
		}
	}
	if img, err := p.Get(t.Context(), p.images[wasm].ID()); err != nil || !slices.Equal(img.Tags, []string{"docker.io/library/own:1"}) {
		t.Errorf("the former: %+v, %v", img, err)
	}
	_, err := p.PullFor(t.Context(), image.PullTarget{}, p.name, image.Auth{}, nil)
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "is wasi/wasm, this node is linux/") {
		t.Errorf("for the node: %v", err)
	}
	_, err = p.PullFor(t.Context(), image.PullTarget{Platform: otherArch()}, p.name, image.Auth{}, nil)
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "is wasi/wasm, its handler needs "+otherArch()) {
		t.Errorf("for another processor: %v", err)
	}
}

// TestArchivesHaveImagesOfHandlers: an import takes the images for the platforms of the rules. What was saved is imported
// again, and the check of the store finds no fault.
func TestArchivesHaveImagesOfHandlers(t *testing.T) {
	p := newPlatformSite(t, nil)
	for platform := range p.images {
		p.pull(t, platform, p.name)
	}
	report, err := p.Check(t.Context(), false, nil)
	if err != nil || len(report.Damage) > 0 || len(report.Notes) > 0 {
		t.Errorf("check: %+v, %v", report, err)
	}
	use, err := p.DiskUse(t.Context())
	if err != nil || len(use.Images) != 3 {
		t.Errorf("disk use: %+v, %v", use, err)
	}
	var archive bytes.Buffer
	if err := p.Export(t.Context(), []string{p.name, p.images[wasm].ID()}, &archive); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(file, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.PullRules.Platforms = []string{wasm}
	into := &platformSite{Images: open(t, cfg), name: p.name, images: p.images}
	list, err := into.Import(t.Context(), bytes.NewReader(archive.Bytes()), "", true, nil)
	if err != nil || len(list) != 2 {
		t.Fatalf("imported %+v, %v", list, err)
	}
	for _, platform := range []string{"", wasm} {
		if img, err := into.GetFor(t.Context(), platform, p.name); err != nil || img.ID != p.images[platform].ID() || !img.Pinned {
			t.Errorf("%q: %+v, %v", platform, img, err)
		}
	}
	if _, err := open(t, testConfig(t)).Import(t.Context(), bytes.NewReader(archive.Bytes()), "", false, nil); !errors.Is(err, errs.Unsupported) {
		t.Errorf("a node without such a handler: %v", err)
	}
	// The same in a directory that is used in place.
	made := filepath.Join(t.TempDir(), "made")
	if list, err := MakePreloaded(context.Background(), made, []string{file}, []string{wasm}, helper, cfg.Log); err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	cfg = testConfig(t)
	cfg.PreloadedDirs, cfg.PullRules.Platforms = []string{made}, []string{wasm}
	into.Images = open(t, cfg)
	for _, platform := range []string{"", wasm} {
		if img, err := into.GetFor(t.Context(), platform, p.name); err != nil || img.ID != p.images[platform].ID() {
			t.Errorf("preloaded, %q: %+v, %v", platform, img, err)
		} else if got := into.content(t, img.ID); got != platform {
			t.Errorf("preloaded: the container of %q has %q", platform, got)
		}
	}
}

// TestLostImageOfAPlatform: an image of a platform that a start cannot use is pulled again for this platform.
func TestLostImageOfAPlatform(t *testing.T) {
	p := newPlatformSite(t, nil)
	p.pull(t, wasm, p.name)
	path := p.db.BlobPath(p.images[wasm].Config.Digest)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	jobs := make(seenJobs, 1000)
	p.cfg.Jobs = jobs
	p.Images = open(t, p.cfg)
	jobs.until(t, "pull image again: ok")
	p.wants(t, wasm)
}

// TestOneImageForTwoPlatforms: if the index has no image for a variant, the node's image has the names of both platforms.
func TestOneImageForTwoPlatforms(t *testing.T) {
	p := newPlatformSite(t, nil)
	variant := "linux/" + runtime.GOARCH + map[string]string{"amd64": "/v2", "arm64": "/v9"}[runtime.GOARCH]
	for _, platform := range []string{"", variant, ""} {
		if id := p.pull(t, platform, p.name); id != p.images[""].ID() {
			t.Errorf("pulled %s for %q", id, platform)
		}
	}
	p.pull(t, variant, p.name)
	if err := p.Tag(t.Context(), p.name, []string{"own:1"}); err != nil {
		t.Fatal(err)
	}
	both := func() {
		t.Helper()
		tags := []string{p.name, "docker.io/library/own:1"}
		slices.Sort(tags)
		for _, platform := range []string{"", variant} {
			for _, ref := range []string{p.name, "own:1"} {
				if img, err := p.GetFor(t.Context(), platform, ref); err != nil || img.ID != p.images[""].ID() || !slices.Equal(img.Tags, tags) {
					t.Errorf("%s for %q: %+v, %v", ref, platform, img, err)
				}
			}
		}
		if list, err := p.List(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("listed %+v, %v", list, err)
		}
	}
	both()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Images = open(t, p.cfg)
	both()
	if err := p.RemoveFor(t.Context(), variant, p.name); err != nil {
		t.Fatal(err)
	}
	p.wants(t)
	p.lacks(t, "")
}

// TestPreloadedImageForNoHandler: an image of a preloaded directory that is for no platform of the node is skipped. The others
// are taken, once.
func TestPreloadedImageForNoHandler(t *testing.T) {
	cfg := testConfig(t)
	dir := t.TempDir()
	specs := []imagetest.Spec{{Name: "module:1", OS: "wasi", Architecture: "wasm"}, {Name: "app:1"}}
	var archives []string
	for _, spec := range specs {
		spec.Layers = []imagetest.Layer{{{Path: "app", Content: []byte(spec.Name)}}}
		archives = append(archives, filepath.Join(dir, spec.Name+".tar"))
		if err := os.WriteFile(archives[len(archives)-1], archiveOf(t, spec).Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := filepath.Join(dir, "made")
	if list, err := MakePreloaded(t.Context(), made, archives, []string{wasm}, helper, cfg.Log); err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	cfg.PreloadedDirs = []string{made}
	s := open(t, cfg)
	if tags := tagsOf(t, s); !slices.Equal(tags, []string{"docker.io/library/app:1"}) {
		t.Errorf("preloaded: %q", tags)
	}
	if err := s.Remove(t.Context(), "app:1"); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if tags := tagsOf(t, s); len(tags) > 0 {
		t.Errorf("taken again: %q", tags)
	}
	s.cfg.PullRules.Platforms = []string{wasm}
	s = reopen(t, s)
	if img, err := s.GetFor(t.Context(), wasm, "module:1"); err != nil || !img.Pinned {
		t.Errorf("with a handler for it: %+v, %v", img, err)
	}
}
