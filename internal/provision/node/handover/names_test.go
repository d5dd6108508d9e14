package handover

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestParseTag(t *testing.T) {
	id := digest.FromString("x").String()
	for name, want := range map[string]string{
		"r.example:5000/a/b:1": "1", "busybox:musl": "musl", "r.example:5000/a": "", "a@" + id: "", "a:1@" + id: "",
		id: "", strings.TrimPrefix(id, "sha256:"): "", "import-2026-01-01@sha256:0": "", "<none>:<none>": "",
	} {
		tagged, ok := parseTag(name)
		if ok != (want != "") || ok && tagged.Tag() != want {
			t.Errorf("%s: %v, %v; want %q", name, tagged, ok, want)
		}
	}
}

func TestDigestIn(t *testing.T) {
	a, b := digest.FromString("a"), digest.FromString("b")
	all := []string{"<none>@<none>", "r.example:5000/other@" + a.String(), "r.example:5000/x@" + b.String()}
	for name, want := range map[string]digest.Digest{"r.example:5000/x:1": b, "r.example:5000/other:1": a, "r.example:5000/y:1": ""} {
		tagged, ok := parseTag(name)
		if !ok {
			t.Fatal(name)
		}
		if got, ok := digestIn(tagged, all); got != want || ok != (want != "") {
			t.Errorf("%s: %s, %v; want %s", name, got, ok, want)
		}
	}
}
