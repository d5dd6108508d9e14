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

// TestLosses: berth does not pull a pinned image, which comes from an archive or a directory of the node. An id is not a name.
func TestLosses(t *testing.T) {
	target := imagespec.Descriptor{Digest: digest.FromString("1")}
	for _, pinned := range []bool{true, false} {
		found := Losses{}
		found.Note(target, "sha256:1", pinned)
		found.Note(target, "example.org/a:1#wasi/wasm", pinned)
		all := found.Images()
		if len(all) != 1 || all[0].NoPull != pinned || all[0].Pinned != pinned || all[0].ID != "sha256:1" || !slices.Equal(all[0].Names, []string{"example.org/a:1#wasi/wasm"}) || !slices.Equal(all[0].Called(), []string{"example.org/a:1"}) {
			t.Errorf("pinned %v: %+v", pinned, all)
		}
	}
}

// TestSettle: an image is back once its digest is, or once other images have all of its tags.
func TestSettle(t *testing.T) {
	const byDigest, one, two = "example.org/a@sha256:1", "example.org/a:1", "example.org/a:2"
	for _, c := range []struct {
		names, taken []string
		back         bool
	}{
		{[]string{byDigest, one, two}, nil, false},
		{[]string{byDigest, one, two}, []string{byDigest}, true},
		{[]string{byDigest, one, two}, []string{one}, false},
		{[]string{byDigest, one, two}, []string{one, two}, true},
		{[]string{byDigest}, []string{one}, false},
		{[]string{byDigest}, []string{byDigest}, true},
	} {
		root := t.TempDir()
		l := NewList(root, slog.New(slog.DiscardHandler))
		l.Add([]Image{{Names: c.names, Target: imagespec.Descriptor{Digest: digest.FromString("1")}}})
		l.Settle(func(key string) bool { return slices.Contains(c.taken, key) })
		if left := NewList(root, slog.New(slog.DiscardHandler)).Images(); (len(left) == 0) != c.back {
			t.Errorf("%q with %q taken: left %+v", c.names, c.taken, left)
		}
	}
}

// TestRemove: a lost image leaves the list when its tags are removed. The list keeps that a pull has failed for good.
func TestRemove(t *testing.T) {
	target := digest.FromString("1")
	root := t.TempDir()
	l := NewList(root, slog.New(slog.DiscardHandler))
	l.Add([]Image{{Names: []string{"a@sha256:1", "a:1", "a:2"}, Target: imagespec.Descriptor{Digest: target}}})
	l.GiveUp(target)
	l.Remove([]string{"a:1"})
	if got, ok := NewList(root, slog.New(slog.DiscardHandler)).Get(target); !ok || !got.NoPull || !slices.Equal(got.Names, []string{"a@sha256:1", "a:2"}) {
		t.Errorf("%+v, %v", got, ok)
	}
	l.Remove([]string{"other:1"})
	if _, ok := l.Get(target); !ok {
		t.Error("the image is not on the list any more")
	}
	l.Remove([]string{"a:2"})
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}
