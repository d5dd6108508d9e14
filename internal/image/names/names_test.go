package names

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

func TestHostileDigestsInReferences(t *testing.T) {
	for _, text := range imagetest.HostileDigests() {
		if text == strings.Repeat("a", 64) {
			continue // an id, and never the name of a repository
		}
		named, err := Parse("registry.test/app@" + text)
		if err == nil || !errors.Is(err, errs.Invalid) {
			t.Errorf("reference with %q became %v, %v", text, named, err)
		}
		if id, ok := IDPrefix(text); ok && !IsID(id) {
			t.Errorf("%q became the id %q", text, id)
		}
	}
}

// A key leads back to its name and its platform, and ids have none.
func TestKeys(t *testing.T) {
	id := "sha256:" + strings.Repeat("a", 64)
	for _, test := range []struct{ name, platform, key string }{
		{"docker.io/library/a:1", "", "docker.io/library/a:1"},
		{"docker.io/library/a:1", "wasi/wasm", "docker.io/library/a:1#wasi/wasm"},
		{"r.test:5000/a@" + id, "linux/arm/v7", "r.test:5000/a@" + id + "#linux/arm/v7"},
	} {
		key := Key(test.name, test.platform)
		name, platform := OfKey(key)
		if key != test.key || name != test.name || platform != test.platform || Key(key, test.platform) != key {
			t.Errorf("%+v: key %q, name %q, platform %q", test, key, name, platform)
		}
		if _, err := Parse(key); (err == nil) != (test.platform == "") {
			t.Errorf("key %q as a reference: %v", key, err)
		}
	}
	if key := Key(id, "wasi/wasm"); key != id {
		t.Errorf("the key of an id is %q", key)
	}
}

// FuzzReference: an accepted reference is complete, has the same meaning when it is parsed again,
// and is never both an id and the name of a repository.
func FuzzReference(f *testing.F) {
	for _, seed := range []string{
		"busybox", "docker.io/library/busybox:1.36", "localhost:5000/a/b@sha256:" + strings.Repeat("a", 64),
		"sha256:" + strings.Repeat("0", 64), strings.Repeat("f", 64), "[::1]:5000/x:y", "a//b", "A:b", "x:y@sha256:0", "",
	} {
		f.Add(seed)
	}
	registries := []string{"registry.test", "docker.io", "127.0.0.1:5000"}
	f.Fuzz(func(t *testing.T, ref string) {
		if id, ok := IDPrefix(ref); ok && !IsID(id) {
			t.Errorf("%q became the id %q", ref, id)
		}
		named, err := Parse(ref)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%q: %v blames nobody", ref, err)
			}
			return
		}
		whole := named.String()
		if IsID(whole) || strings.ContainsAny(whole, " \n\x00") || !strings.Contains(whole, "/") {
			t.Errorf("%q became %q", ref, whole)
		}
		again, err := Parse(whole)
		if err != nil || again.String() != whole {
			t.Errorf("%q became %q, and then %v, %v", ref, whole, again, err)
		}
		// The registry of the list, or the reference itself: no name leads to another registry.
		for i, host := range registries {
			all, err := Candidates(ref, registries)
			switch {
			case err != nil && !errors.Is(err, errs.Invalid):
				t.Errorf("%q: %v blames nobody", ref, err)
			case err != nil: // too long with a registry before it
			case !IsShort(ref) && (len(all) != 1 || all[0].String() != whole):
				t.Errorf("%q became %v, want %q", ref, all, whole)
			case IsShort(ref) && (len(all) != len(registries) || reference.Domain(all[i]) != host):
				t.Errorf("%q became %v at %v", ref, all, registries)
			}
		}
	})
}

func TestCandidates(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	list := []string{"registry.test", "docker.io", "127.0.0.1:5000"}
	for _, c := range []struct {
		ref        string
		registries []string
		want       []string
	}{
		{"app", nil, []string{"docker.io/library/app:latest"}},
		{"team/app:1", nil, []string{"docker.io/team/app:1"}},
		{"app", list, []string{"registry.test/app:latest", "docker.io/library/app:latest", "127.0.0.1:5000/app:latest"}},
		{"team/app:1", list, []string{"registry.test/team/app:1", "docker.io/team/app:1", "127.0.0.1:5000/team/app:1"}},
		{"app:1" + digest, list[:2], []string{"registry.test/app" + digest, "docker.io/library/app" + digest}},
		// With a registry, the list is of no use.
		{"docker.io/app", list, []string{"docker.io/library/app:latest"}},
		{"other.test/app:1", list, []string{"other.test/app:1"}},
		{"localhost/app:1", list, []string{"localhost/app:1"}},
		{"Team/app:1", list, []string{"Team/app:1"}},
	} {
		all, err := Candidates(c.ref, c.registries)
		var got []string
		for _, named := range all {
			got = append(got, named.String())
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s of %v: %v, %v, want %v", c.ref, c.registries, got, err, c.want)
		}
	}
	// A registry in front does not make a reference of an id, or of a text that is invalid.
	for _, ref := range []string{strings.Repeat("f", 64), "", "/app", "App", "a b", "app:", "x:y@sha256:0"} {
		if all, err := Candidates(ref, list); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v, %v, want an error", ref, all, err)
		}
	}
}
