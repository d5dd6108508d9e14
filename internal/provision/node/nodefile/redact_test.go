package nodefile_test

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// TestRedact: the node file in the history has no content of files that not every user may read,
// even if an anchor or a comment contains it.
func TestRedact(t *testing.T) {
	text := `apiVersion: berth.run/v1alpha1
kind: Node
runtime:
  name: berth
  environment: {AWS_KEY: abc-env}
proxy: {http: "http://user:abc-plain@proxy.example:3128", https: "http://user:abc-proxy@proxy.example:3128"}
files:
- {path: /etc/a, content: &it abc-anchor, mode: "0600"} # it is abc-anchor
- {path: /etc/b, content: *it, mode: "0600"}
- {path: /etc/c, type: directory, mode: "0700"}
- {path: /etc/c/d, content: abc-inside}
- path: /etc/e
  content: |
    shown
`
	got, err := nodefile.Redact([]byte(text), func(string) string { return "(hidden)" })
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "abc-") {
		t.Errorf("a secret is shown:\n%s", got)
	}
	for _, want := range []string{"/etc/a", "(hidden)", "shown\n", "AWS_KEY"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is not shown:\n%s", want, got)
		}
	}
	plain := "apiVersion: berth.run/v1alpha1\nkind: Node\nruntime: {name: berth} # mine\n"
	if got, err = nodefile.Redact([]byte(plain), nil); err != nil || string(got) != plain {
		t.Errorf("got %q, %v; want the file as it is", got, err)
	}
}
