package lost

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestList: another process reads the same list. The list has each image once, with all its names. An empty list leaves no
// file behind.
func TestList(t *testing.T) {
	root, log := t.TempDir(), slog.New(slog.DiscardHandler)
	image := func(content string, names ...string) Image {
		return Image{Names: names, Target: imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromString(content), Size: 7}}
	}
	one, two := image("1", "example.org/a:1"), image("2", "example.org/b:1")
	NewList(root, log).Add([]Image{one, two})
	NewList(root, log).Add([]Image{image("1", "example.org/a:1", "example.org/a:2")})
	l := NewList(root, log)
	all := l.Images()
	if len(all) != 2 || !slices.Equal(all[0].Names, []string{"example.org/a:1", "example.org/a:2"}) || all[0].Target.Digest != one.Target.Digest || all[1].Target.Size != 7 {
		t.Errorf("%+v", all)
	}
	l.Forget(one.Target.Digest)
	if all := NewList(root, log).Images(); len(all) != 1 || all[0].Target.Digest != two.Target.Digest {
		t.Errorf("after Forget: %+v", all)
	}
	l.Forget(two.Target.Digest)
	l.Forget(two.Target.Digest)
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("an empty list left %v, %v", entries, err)
	}
}

// TestDamagedList: a list that cannot be read does not stop a start, and is written anew.
func TestDamagedList(t *testing.T) {
	for name, data := range map[string]string{"garbage": "\x00\x00", "newer": `{"version":2,"images":[{"names":["a"]}]}`, "empty": ""} {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, FileName), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		l := NewList(root, slog.New(slog.DiscardHandler))
		if all := l.Images(); len(all) != 0 {
			t.Errorf("%s: %+v", name, all)
		}
		l.Add([]Image{{Names: []string{"example.org/a:1"}, Target: imagespec.Descriptor{Digest: digest.FromString("1")}}})
		if all := l.Images(); len(all) != 1 {
			t.Errorf("%s, after Add: %+v", name, all)
		}
	}
}

// TestLosses: an archive of the node has the names of a pinned image, without the platform for which it was imported. A pull needs
// the keys.
func TestLosses(t *testing.T) {
	target := imagespec.Descriptor{Digest: digest.FromString("1")}
	for _, pinned := range []bool{true, false} {
		found := Losses{}
		found.Note(target, "sha256:1", pinned)
		found.Note(target, "example.org/a:1#wasi/wasm", pinned)
		if names := found.PinnedNames(); pinned != slices.Equal(names, []string{"example.org/a:1"}) {
			t.Errorf("pinned %v: the pinned names are %q", pinned, names)
		}
		all := found.FromRegistries()
		if pinned != (len(all) == 0) || !pinned && !slices.Equal(all[0].Names, []string{"example.org/a:1#wasi/wasm"}) {
			t.Errorf("pinned %v: to be pulled again: %+v", pinned, all)
		}
	}
}
