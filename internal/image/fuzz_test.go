package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzReference: a reference that is taken is whole, names the same when it is read
// again, and is never both an id and a name of a repository.
func FuzzReference(f *testing.F) {
	for _, seed := range []string{
		"busybox", "docker.io/library/busybox:1.36", "localhost:5000/a/b@sha256:" + strings.Repeat("a", 64),
		"sha256:" + strings.Repeat("0", 64), strings.Repeat("f", 64), "[::1]:5000/x:y", "a//b", "A:b", "x:y@sha256:0", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		if id, ok := idPrefix(ref); ok && !isID(id) {
			t.Errorf("%q became the id %q", ref, id)
		}
		named, err := parseName(ref)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%q: %v blames nobody", ref, err)
			}
			return
		}
		whole := named.String()
		if isID(whole) || strings.ContainsAny(whole, " \n\x00") || !strings.Contains(whole, "/") {
			t.Errorf("%q became %q", ref, whole)
		}
		again, err := parseName(whole)
		if err != nil || again.String() != whole {
			t.Errorf("%q became %q, and then %v, %v", ref, whole, again, err)
		}
	})
}
