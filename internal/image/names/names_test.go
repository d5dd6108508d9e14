package names

import (
	"errors"
	"strings"
	"testing"

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

// FuzzReference: an accepted reference is complete, has the same meaning when it is parsed again,
// and is never both an id and the name of a repository.
func FuzzReference(f *testing.F) {
	for _, seed := range []string{
		"busybox", "docker.io/library/busybox:1.36", "localhost:5000/a/b@sha256:" + strings.Repeat("a", 64),
		"sha256:" + strings.Repeat("0", 64), strings.Repeat("f", 64), "[::1]:5000/x:y", "a//b", "A:b", "x:y@sha256:0", "",
	} {
		f.Add(seed)
	}
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
	})
}
